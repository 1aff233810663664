"""A stoppable training loop over numpy arrays, for the demo, tests and scripts without PyTorch.

The script sums two numbers over its ranks beside its gradients (`votes`, `apply_votes`), so that all ranks save and
leave at the same step.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.arrays import Floats
from shoal.trainer.checkpoint import SAVE_EVERY_SECONDS, Checkpoints
from shoal.trainer.session import Progress, Session

_LOG = logging.getLogger("shoal.trainer")

_FILE = "arrays.npz"


class ArrayTraining:
    """Training of ``steps`` steps that change ``arrays`` in place, resumed from the last checkpoint if there is one.

    Progress is counted in steps.
    """

    def __init__(
        self,
        arrays: Mapping[str, Floats],
        steps: int,
        *,
        save_every: float = SAVE_EVERY_SECONDS,
        session: Session | None = None,
    ) -> None:
        self.arrays = dict(arrays)
        self.step = 0
        self._steps = steps
        self._save_every, self._saved_at = save_every, time.monotonic()
        self._saved = 0.0
        self._leave = self._save = False
        self._loss: float | None = None
        self._session = session or Session()
        folder = self._session.environment.folder
        shapes = ",".join(f"{name}{array.shape}" for name, array in sorted(arrays.items()))
        owner = self._session.environment.job or ""
        self._checkpoints = None if folder is None else Checkpoints(folder / "checkpoints", owner, shapes)
        self._resume()

    @property
    def rank(self) -> int:
        """This process's rank."""
        return self._session.environment.rank

    def votes(self) -> tuple[float, float]:
        """Return this rank's votes for leaving and for saving; pass their sums over all ranks to `apply_votes`."""
        save = self.rank == 0 and (self._session.lapsing or time.monotonic() - self._saved_at > self._save_every)
        return float(self._session.warned), float(save)

    def apply_votes(self, leave: float, save: float, *, loss: float | None = None) -> None:
        """Take the summed votes of this step; positive sums make all ranks leave or save."""
        self._leave, self._save, self._loss = leave > 0, save > 0, loss

    def steps(self) -> Iterator[int]:
        """Yield the remaining step numbers; saves and leaves between steps as voted."""
        self._session.open()
        while self.step < self._steps:
            yield self.step
            self.step += 1
            if self.rank == 0 and (self._leave or self._save):
                self._write()
            self._report()
            if self._leave and self.step < self._steps:
                self._session.leave()
        self._session.close()

    def _report(self) -> None:
        if self.rank == 0:
            self._session.report(Progress(self.step, self._steps, self._saved, loss=self._loss))

    def _write(self) -> None:
        if self._checkpoints is None:
            return
        self._saved_at = time.monotonic()
        try:
            folder = self._checkpoints.begin(self.step)
            files: Any = self.arrays
            np.savez(folder / _FILE, **files)
            self._checkpoints.commit(self.step, {"step": self.step})
        except OSError as error:
            _LOG.warning("the checkpoint at step %s could not be written: %r", self.step, error)
            return
        self._saved = float(self.step)
        self._session.secured()

    def _resume(self) -> None:
        """Load the newest checkpoint. Every rank reads it before any writes, since the first step joins all ranks."""
        found = next(self._checkpoints.usable(), None) if self._checkpoints is not None else None
        if found is not None:
            self._take(found.path, found.facts["step"])

    def _take(self, path: Path, step: int) -> None:
        with np.load(path / _FILE) as saved:
            for name, array in self.arrays.items():
                array[...] = saved[name]
        self.step, self._saved = step, float(step)
