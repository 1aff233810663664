"""The checkpoints of a job whose workers come and go: whoever is rank 0 writes them, whoever starts the job reads them.

All workers hold the same state after every step, so one writes for all and nobody waits for it, but when they are to
leave. One that cannot be written is reported and training goes on with the last.
"""

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

from shoal.trainer.checkpoint import Checkpoints
from shoal.trainer.rank_environment import Place
from shoal.trainer.torch.state import TorchState, write_beside

_LOG = logging.getLogger("shoal.trainer")


class ElasticSaving:
    """One worker's view of the checkpoints in its job's folder; without a folder there are none."""

    def __init__(self, place: Place, state: TorchState, *, every: float) -> None:
        folder = place.folder
        self._checkpoints = None if folder is None else Checkpoints(folder / "checkpoints", place.job or "", state.mark)
        self._state = state
        self._every, self._at = every, time.monotonic()
        self._thread: threading.Thread | None = None
        self.saved = 0
        """Samples seen in the newest checkpoint that this worker has written or read."""

    @property
    def due(self) -> bool:
        """Whether the last one was begun so long ago that it is time for another."""
        return self._checkpoints is not None and time.monotonic() - self._at > self._every

    def resume(self) -> Mapping[str, Any] | None:
        """Be in the state of the newest usable checkpoint; the facts written down with it, None without one."""
        if self._checkpoints is None:
            return None
        for found in self._checkpoints.usable():
            try:
                self._state.load(found.path, None)
            except Exception as error:  # whatever is wrong with it, an older one may do
                self._checkpoints.refuse(found.path, f"it cannot be loaded: {error!r}")
                continue
            self.saved = found.facts["seen"]
            return found.facts
        return None

    def save(self, facts: Mapping[str, Any], *, wait: bool = False) -> None:
        """Copy the state as it is now and have it written; with ``wait`` return when it is."""
        if self._checkpoints is None:
            return
        if facts["seen"] != self.saved:
            self._settle()
            self._at = time.monotonic()
            args = self._checkpoints, dict(facts), {"state": self._state.copy()}
            self._thread = threading.Thread(target=self._write, args=args, name="shoal-checkpoint")
            self._thread.start()
        if wait:
            self._settle()

    def _settle(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write(self, checkpoints: Checkpoints, facts: Mapping[str, Any], what: Mapping[str, Any]) -> None:
        try:
            write_beside(checkpoints.begin(facts["seen"]), what)
            checkpoints.commit(facts["seen"], facts)
            self.saved = facts["seen"]
        except Exception as error:  # training goes on; the last checkpoint is still there
            _LOG.warning("the checkpoint at %s samples could not be written: %r", facts["seen"], error)
