"""Checkpoints of an elastic job: rank 0 writes them, the first workers of a new incarnation read them.

All workers hold the same state after every step, so one writes for all; others wait only when the job is stopped. If a
checkpoint cannot be written, the failure is logged and training continues.
"""

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from shoal.trainer.checkpoint import BackgroundWriter, Checkpoints
from shoal.trainer.environment import RankEnvironment
from shoal.trainer.torch.state import TorchState, write_beside


class ElasticCheckpoints:
    """Checkpoints of one worker's job; none if the job has no folder."""

    def __init__(self, environment: RankEnvironment, state: TorchState, *, every: float) -> None:
        folder = environment.folder
        self._checkpoints = (
            None if folder is None else Checkpoints(folder / "checkpoints", environment.job or "", state.fingerprint)
        )
        self._state = state
        self._every, self._at = every, time.monotonic()
        self._writer = BackgroundWriter()
        self.saved = 0
        """Samples in the newest checkpoint that this worker wrote or read."""

    @property
    def due(self) -> bool:
        """Whether the last checkpoint was started longer ago than the save interval."""
        return self._checkpoints is not None and time.monotonic() - self._at > self._every

    def resume(self) -> Mapping[str, Any] | None:
        """Load the newest usable checkpoint; returns its facts, None if there is none."""
        if self._checkpoints is None:
            return None
        for found in self._checkpoints.usable():
            try:
                self._state.load(found.path, None)
            except Exception as error:  # an older checkpoint may still be usable
                self._checkpoints.refuse(found.path, f"it cannot be loaded: {error!r}")
                continue
            self.saved = found.facts["seen"]
            return found.facts
        return None

    def save(self, facts: Mapping[str, Any], *, wait: bool = False) -> None:
        """Copy the present state and write it in the background; with ``wait``, return when it is written."""
        if self._checkpoints is None:
            return
        if facts["seen"] != self.saved:
            self._writer.settle()
            self._at = time.monotonic()
            write = partial(self._write, self._checkpoints, dict(facts), {"state": self._state.copy()})
            self._writer.start(facts["seen"], write)
        if wait:
            self._writer.settle()

    def _write(self, checkpoints: Checkpoints, facts: Mapping[str, Any], what: Mapping[str, Any]) -> None:
        write_beside(checkpoints.begin(facts["seen"]), what)
        checkpoints.commit(facts["seen"], facts)
        self.saved = facts["seen"]
