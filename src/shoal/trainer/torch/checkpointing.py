"""When a PyTorch run is saved and how it is taken up again: all ranks at the same step, training held up only to copy.

A checkpoint counts from when it is whole. One that cannot be written is reported and training goes on with the last.
"""

import logging
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from shoal.trainer.checkpoint import Checkpoints
from shoal.trainer.torch.agreement import Agreement
from shoal.trainer.torch.state import TorchState, random_state, set_random_state, write_beside

_LOG = logging.getLogger("shoal.trainer")


class Saving:
    """The checkpoints of one run; every method is called by all ranks at the same step."""

    def __init__(self, folder: Path, owner: str, state: TorchState, agreement: Agreement, rank: int) -> None:
        self._checkpoints = Checkpoints(folder, owner, state.mark)
        self._state = state
        self._agreement = agreement
        self._rank = rank
        self._group: Any = None
        self._thread: threading.Thread | None = None
        self._begun: int | None = None
        self.saved: float | None = None
        """Progress in the newest checkpoint that is whole; known to rank 0."""
        self.at = time.monotonic()
        """When one was last begun."""

    def save(self, progress: int, facts: Mapping[str, Any], beside: Mapping[str, Any], *, wait: bool = False) -> None:
        """Copy the state as it is now and have it written; with ``wait`` return when it is."""
        if progress != self._begun:
            self.settle()
            self._begun, self.at = progress, time.monotonic()
            randoms = self._agreement.gather(random_state())
            what = {"state": self._state.copy(), "random": randoms, **beside}
            folder = self._begin(progress)
            shards = self._begin_shards(folder) if self._state.sharded else None
            if folder is not None or shards is not None:
                args = progress, dict(facts), what, folder, shards
                self._thread = threading.Thread(target=self._write, args=args, name="shoal-checkpoint")
                self._thread.start()
        if wait:
            self.settle()

    def settle(self) -> None:
        """Wait until what was begun is written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def resume(self) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
        """Be in the state of the newest usable checkpoint: its facts and what lay beside it; None without one."""
        usable = self._checkpoints.usable() if self._rank == 0 else iter(())
        while True:
            found = next(usable, None)
            path, facts = self._agreement.choose((found.path, found.facts) if found else (None, None))
            if path is None:
                return None
            beside, problem = self._load(path, facts)
            problems = [said for said in self._agreement.gather(problem) if said]
            if not problems:
                self.saved, self._begun = facts["done"], facts["seen"]
                return facts, beside
            if self._rank == 0:
                self._checkpoints.refuse(path, problems[0])

    def _load(self, path: Path, facts: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
        """What lay beside the state, and why that could not be taken, if it could not."""
        try:
            beside = self._state.load(path, self._agreement.group)
            set_random_state(beside["random"], self._rank, int(facts["seen"]))
        except Exception as error:  # whatever is wrong with it, an older one may do
            return {}, f"it cannot be loaded: {error!r}"
        return beside, ""

    def _begin(self, progress: int) -> Path | None:
        """Where rank 0 puts the files; None in the others, and where there is no room."""
        if self._rank != 0:
            return None
        try:
            return self._checkpoints.begin(progress)
        except OSError as error:
            _LOG.warning("the checkpoint at %s samples could not be begun: %r", progress, error)
            return None

    def _begin_shards(self, folder: Path | None) -> Any:
        if self._group is None and dist.is_initialized():
            # Writing goes on beside training, and must not mix with what ranks say to each other meanwhile.
            self._group = dist.new_group(backend="gloo")
        chosen = self._agreement.choose(folder)
        return None if chosen is None else self._state.save_shards(chosen, self._group)

    def _write(
        self, progress: int, facts: Mapping[str, Any], what: Mapping[str, Any], folder: Path | None, shards: Any
    ) -> None:
        try:
            if shards is not None:
                shards.result()
            if folder is not None:
                write_beside(folder, what)
                self._checkpoints.commit(progress, facts)
                self.saved = facts["done"]
        except Exception as error:  # training goes on; the last checkpoint is still there
            _LOG.warning("the checkpoint at %s samples could not be written: %r", progress, error)
