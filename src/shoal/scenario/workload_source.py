"""Where a workload comes from: a file, or a generator by name."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.core.errors import InputError, nearest
from shoal.workload.files import read_workload
from shoal.workload.generators.registry import GENERATORS, generate
from shoal.workload.schema import Workload


@dataclass(frozen=True, slots=True)
class WorkloadSource:
    """A workload file with its ``format``, or a generator's name.

    ``jobs`` is how many to keep, or to generate; ``window`` keeps those submitted in [A, B) seconds.
    """

    name: str
    format: str | None = None
    jobs: int | None = None
    window: tuple[float, float] | None = None
    skip_bad: bool = False

    def load(self, seed: int) -> Workload:
        """The workload; the seed matters only to a generator."""
        if self.name in GENERATORS and self.format is None:
            return self._generated(seed)
        exists = bool(self.name) and Path(self.name).exists()
        if self.name in GENERATORS and not exists:
            raise InputError("format", self.format, f"{self.name} is generated and needs none; leave --format out")
        if not exists and not Path(self.name).suffix:
            hint = f"no such file, and as a generator {nearest(self.name, GENERATORS)}"
            raise InputError("workload", self.name, hint)
        workload = read_workload(self.name, self.format, skip_bad=self.skip_bad, window=self.window)
        return workload if self.jobs is None else workload.first(self.jobs)

    def _generated(self, seed: int) -> Workload:
        workload = generate(self.name, jobs=self.jobs, seed=seed)
        if self.window is None:
            return workload
        within = workload.window(*self.window)
        if not within.jobs:
            window = f"{self.window[0]:g}:{self.window[1]:g}"
            raise InputError("window", window, "no job is submitted in it", where=self.name)
        return within

    def settings(self) -> dict[str, Any]:
        """The settings that choose jobs of the workload, as a kept summary records them."""
        window = None if self.window is None else f"{self.window[0]:g}:{self.window[1]:g}"
        return {"format": self.format, "jobs": self.jobs, "window": window, "skip_bad": self.skip_bad}
