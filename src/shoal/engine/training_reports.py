"""Training reports: goodput by live job and by model, and changes of batch size by live job.

A table that is part of a snapshot is never written again: the next change goes into a copy.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeAlias

from shoal.core.goodput import GoodputReport
from shoal.core.units import JobNumber

BatchChanges: TypeAlias = tuple[tuple[float, int], ...]
"""(progress, batch size) pairs in order: from that progress on the job trained at that size."""

Tables: TypeAlias = tuple[
    Mapping[JobNumber, GoodputReport], Mapping[str, GoodputReport], Mapping[JobNumber, BatchChanges]
]
_EMPTY: Tables = MappingProxyType({}), MappingProxyType({}), MappingProxyType({})


@dataclass(slots=True)
class TrainingReports:
    """The latest goodput report of each live job, the joined reports of each model, and changes of batch size."""

    reports: dict[JobNumber, GoodputReport] = field(default_factory=dict)
    by_model: dict[str, GoodputReport] = field(default_factory=dict)
    changes: dict[JobNumber, BatchChanges] = field(default_factory=dict)
    _frozen: bool = False

    def freeze(self) -> Tables:
        """Return the three tables, read-only; they keep showing this moment."""
        if not (self.reports or self.by_model or self.changes):
            return _EMPTY
        self._frozen = True
        return MappingProxyType(self.reports), MappingProxyType(self.by_model), MappingProxyType(self.changes)

    def _thaw(self) -> None:
        """Copy the tables before they are written if a snapshot has them."""
        if self._frozen:
            self.reports, self.by_model, self.changes = dict(self.reports), dict(self.by_model), dict(self.changes)
            self._frozen = False

    def report(self, job: JobNumber, model: str | None, report: GoodputReport) -> None:
        """Set a job's report, and join it to its model's."""
        self._thaw()
        self.reports[job] = report
        if model is not None:
            self.by_model[model] = _joined(self.by_model.get(model), report)

    def change(self, job: JobNumber, progress: float, batch_size: int) -> None:
        """Add a change of batch size; drop those at later progress, behind which a crash has set the job back."""
        self._thaw()
        kept = tuple(change for change in self.changes.get(job, ()) if change[0] < progress)
        self.changes[job] = (*kept, (progress, batch_size))

    def forget(self, job: JobNumber) -> None:
        """Drop an ended job; its model's report stays."""
        if job in self.reports or job in self.changes:
            self._thaw()
            self.reports.pop(job, None)
            self.changes.pop(job, None)


def _joined(known: GoodputReport | None, new: GoodputReport) -> GoodputReport:
    """Return the report on a model after one more job's report: for each kind the fit that has seen the most GPUs."""
    if known is None:
        return replace(new, remembered=True)
    fits = dict(known.fits)
    for kind, fit in new.fits:
        if kind not in fits or fit.gpus >= fits[kind].gpus:
            fits[kind] = fit
    seen = max(known.seen_gpus, new.seen_gpus)
    return replace(new, fits=tuple(fits.items()), seen_gpus=seen, remembered=True)
