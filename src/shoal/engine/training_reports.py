"""What jobs let be known of themselves while they run, job by job and model by model; kept only where there is any.

The tables are given out as they are and never written again after that: what is learned later goes into new ones, so a
snapshot goes on showing its moment.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeAlias

from shoal.core.goodput import GoodputReport, StepFit
from shoal.core.units import JobNumber

Changes: TypeAlias = tuple[tuple[float, int], ...]
"""From which progress on a job trained at which batch size, in order."""


Shown: TypeAlias = tuple[Mapping[JobNumber, GoodputReport], Mapping[str, GoodputReport], Mapping[JobNumber, Changes]]
"""Reports by live job, what models are remembered by, and changes of batch size by live job; read-only."""


@dataclass(slots=True)
class TrainingReports:
    """Reports of agents by live job, what they come to by model, and the changes of batch size by live job."""

    reports: dict[JobNumber, GoodputReport] = field(default_factory=dict)
    remembered: dict[str, GoodputReport] = field(default_factory=dict)
    changes: dict[JobNumber, Changes] = field(default_factory=dict)
    _shown: bool = False

    def show(self) -> Shown:
        """The tables of this moment, for others to keep."""
        self._shown = True
        return MappingProxyType(self.reports), MappingProxyType(self.remembered), MappingProxyType(self.changes)

    def _own(self) -> None:
        """Before anything is written: whoever was shown the tables keeps them."""
        if self._shown:
            self.reports, self.remembered = dict(self.reports), dict(self.remembered)
            self.changes = dict(self.changes)
            self._shown = False

    def report(self, job: JobNumber, model: str | None, report: GoodputReport) -> None:
        """An agent reported; jobs of the same model are the wiser for it."""
        self._own()
        self.reports[job] = report
        if model is not None:
            self.remembered[model] = _joined(self.remembered.get(model), report)

    def change(self, job: JobNumber, progress: float, batch_size: int) -> None:
        """A job's own script changed its batch size; set back by a crash, it comes to the same changes again."""
        self._own()
        kept = tuple(change for change in self.changes.get(job, ()) if change[0] < progress)
        self.changes[job] = (*kept, (progress, batch_size))

    def forget(self, job: JobNumber) -> None:
        """The job ended; what its model is remembered by stays."""
        if job in self.reports or job in self.changes:
            self._own()
            self.reports.pop(job, None)
            self.changes.pop(job, None)


def _joined(known: GoodputReport | None, told: GoodputReport) -> GoodputReport:
    """What a model is remembered by after one more report."""
    if known is None:
        return replace(told, remembered=True)
    fits: dict[str, StepFit] = dict(known.fits)
    for kind, fit in told.fits:
        if kind not in fits or fit.gpus >= fits[kind].gpus:
            fits[kind] = fit
    seen = max(known.seen_gpus, told.seen_gpus)
    return replace(told, fits=tuple(fits.items()), seen_gpus=seen, remembered=True)
