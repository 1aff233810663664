"""All that a PyTorch run consists of, taken out and put back: model, optimizer, schedulers, random numbers.

Replicated state is copied at once and written by rank 0 in its own time. Sharded state (FSDP2) is written by all ranks
through ``torch.distributed.checkpoint``, which also cuts it anew for another number of them.
"""

import random
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_FILE = "state.pt"
_SHARDS = "shards"


class Stateful(Protocol):
    """What can say its state and take one back, as schedulers, scalers and the like do."""

    def state_dict(self) -> dict[str, Any]:
        """All of its state."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any:
        """Be in this state."""


@dataclass(frozen=True, slots=True)
class TorchState:
    """The parts of a run whose state is kept; ``more`` are schedulers and whatever else goes on from step to step."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    more: Mapping[str, Stateful]

    @property
    def sharded(self) -> bool:
        """Whether each rank holds a part of the parameters only."""
        if "torch.distributed.tensor" not in sys.modules:  # to import it takes a second of every start
            return False
        from torch.distributed.tensor import DTensor

        return any(isinstance(parameter, DTensor) for parameter in self.model.parameters())

    @property
    def mark(self) -> str:
        """What says of a checkpoint that it is of this model: the names and shapes of all that it holds."""
        shapes = [(name, tuple(tensor.shape)) for name, tensor in self._plain.state_dict().items()]
        return f"{type(self.optimizer).__name__}-{zlib.crc32(repr(shapes).encode()):08x}"

    @property
    def _plain(self) -> nn.Module:
        wrapped = isinstance(self.model, DistributedDataParallel)
        plain: nn.Module = self.model.module if wrapped else self.model
        return plain

    def copy(self) -> dict[str, Any]:
        """All state that is the same in every rank, as it is now, in memory of its own."""
        state = {"more": {name: _copied(part.state_dict()) for name, part in self.more.items()}}
        if not self.sharded:
            state |= {"model": _copied(self._plain.state_dict()), "optimizer": _copied(self.optimizer.state_dict())}
        return state

    def save_shards(self, folder: Path, group: Any) -> Any:
        """Begin to write sharded state, all ranks together; a future, once it has been copied."""
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self.model, self.optimizer)
        state = {"model": model, "optimizer": optimizer}
        return dcp.async_save(state, checkpoint_id=str(folder / _SHARDS), process_group=group)

    def load(self, folder: Path, group: Any) -> dict[str, Any]:
        """Be in the state that was saved here; gives what was written beside it."""
        beside: dict[str, Any] = torch.load(folder / _FILE, map_location="cpu", weights_only=True)
        state = beside["state"]
        if self.sharded:
            import torch.distributed.checkpoint as dcp
            from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

            model, optimizer = get_state_dict(self.model, self.optimizer)
            shards = {"model": model, "optimizer": optimizer}
            dcp.load(shards, checkpoint_id=str(folder / _SHARDS), process_group=group)
            set_state_dict(self.model, self.optimizer, model_state_dict=model, optim_state_dict=optimizer)
        else:
            self._plain.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        for name, part in self.more.items():
            part.load_state_dict(state["more"][name])
        return beside


def write_beside(folder: Path, what: Mapping[str, Any]) -> None:
    """Write the file of a checkpoint that rank 0 alone writes."""
    torch.save(dict(what), folder / _FILE)


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: _copied(part) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copied(part) for part in value)
    return value


def random_state() -> dict[str, Any]:
    """This process's random numbers to come: Python's, numpy's if it is in use, PyTorch's on all devices."""
    state: dict[str, Any] = {"python": _flat(random.getstate()), "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        drawn: Any = np.random.get_state(legacy=True)
        kind, keys, place, has_gauss, gauss = drawn
        state["numpy"] = [kind, torch.from_numpy(keys.astype(np.int64)), place, has_gauss, gauss]
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(states: Sequence[Mapping[str, Any]], rank: int, spice: int) -> None:
    """Draw on where this rank's numbers ended; a rank that was not there then draws numbers of its own."""
    if rank >= len(states):
        torch.manual_seed(hash((spice, rank)))
        random.seed(hash((spice, rank)))
        np.random.seed(hash((spice, rank)) % 2**32)
        return
    state = states[rank]
    version, *words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        kind, keys, place, has_gauss, cached = state["numpy"]
        np.random.set_state((kind, keys.numpy().astype(np.uint32), place, has_gauss, cached))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def _flat(state: Any) -> list[Any]:
    version, words, gauss = state
    return [version, *words, gauss]
