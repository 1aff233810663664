"""Saving and resuming of a PyTorch run: all ranks at the same step; training waits only while state is copied.

A checkpoint counts once it is complete. If one cannot be written, the failure is logged and training continues.
"""

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist

from shoal.trainer.checkpoint import BackgroundWriter, Checkpoints
from shoal.trainer.torch.rank_exchange import RankExchange
from shoal.trainer.torch.state import TorchState, random_state, set_random_state, write_beside

_LOG = logging.getLogger("shoal.trainer")


class RunCheckpoints:
    """Checkpoints of one run; all ranks call every method at the same step."""

    def __init__(self, folder: Path, owner: str, state: TorchState, exchange: RankExchange, rank: int) -> None:
        self._checkpoints = Checkpoints(folder, owner, state.fingerprint)
        self._state = state
        self._exchange = exchange
        self._rank = rank
        self._group: Any = None
        self._writer = BackgroundWriter()
        self._begun: int | None = None
        self.saved: float | None = None
        """Progress in the newest complete checkpoint; known in rank 0 only."""

    def save(self, progress: int, facts: Mapping[str, Any], beside: Mapping[str, Any], *, wait: bool = False) -> None:
        """Copy the present state and write it in the background; with ``wait``, return when it is written."""
        if progress != self._begun:
            self.settle()
            self._begun = progress
            randoms = self._exchange.gather(random_state())
            what = {"state": self._state.copy(), "random": randoms, **beside}
            folder = self._begin(progress)
            shards = self._begin_shards(folder) if self._state.sharded else None
            if folder is not None or shards is not None:
                self._writer.start(progress, partial(self._write, progress, dict(facts), what, folder, shards))
        if wait:
            self.settle()

    def settle(self) -> None:
        """Wait until the checkpoint under way is written."""
        self._writer.settle()

    def resume(self) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
        """Load the newest usable checkpoint; return its facts and the data beside the state, None if there is none."""
        usable = self._checkpoints.usable() if self._rank == 0 else iter(())
        while True:
            found = next(usable, None)
            name, facts = self._exchange.broadcast((str(found.path), dict(found.facts)) if found else (None, None))
            if name is None:
                return None
            path = Path(name)
            beside, problem = self._load(path, facts)
            problems = [each for each in self._exchange.gather(problem) if each]
            if not problems:
                self.saved, self._begun = facts["done"], facts["seen"]
                return facts, beside
            if self._rank == 0:
                self._checkpoints.refuse(path, problems[0])

    def _load(self, path: Path, facts: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
        """The data stored beside the state, and the error if it could not be loaded."""
        try:
            beside = self._state.load(path, self._exchange.group)
            set_random_state(beside["random"], self._rank, int(facts["seen"]))
        except Exception as error:  # an older checkpoint may still be usable
            return {}, f"it cannot be loaded: {error!r}"
        return beside, ""

    def _begin(self, progress: int) -> Path | None:
        """Folder for rank 0's files; None in other ranks and where it cannot be created."""
        if self._rank != 0:
            return None
        try:
            return self._checkpoints.begin(progress)
        except OSError as error:
            _LOG.warning("the checkpoint at %s samples could not be begun: %r", progress, error)
            return None

    def _begin_shards(self, folder: Path | None) -> Any:
        if self._group is None and dist.is_initialized():
            # Writing overlaps training and must not mix with the ranks' other collectives.
            self._group = dist.new_group(backend="gloo")
        chosen = self._exchange.broadcast(None if folder is None else str(folder))
        return None if chosen is None else self._state.save_shards(Path(chosen), self._group)

    def _write(
        self, progress: int, facts: Mapping[str, Any], what: Mapping[str, Any], folder: Path | None, shards: Any
    ) -> None:
        if shards is not None:
            shards.result()
        if folder is not None:
            write_beside(folder, what)
            self._checkpoints.commit(progress, facts)
            self.saved = facts["done"]
