"""State of a PyTorch run, copied out and loaded back: model, optimizer, schedulers, random number generators.

Replicated state is copied at once and written by rank 0 in the background. Sharded state (FSDP2) is written by all
ranks through ``torch.distributed.checkpoint``, which also reshards it for another number of ranks.
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
    """An object with a state dictionary: models, optimizers, learning-rate schedulers, gradient scalers."""

    def state_dict(self) -> dict[str, Any]:
        """The complete state."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any:
        """Load a state."""


@dataclass(frozen=True, slots=True)
class TorchState:
    """The parts of a run that a checkpoint stores; ``more`` holds schedulers and other stateful objects by name."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    more: Mapping[str, Stateful]

    @property
    def sharded(self) -> bool:
        """Whether each rank holds only a shard of the parameters."""
        if "torch.distributed.tensor" not in sys.modules:  # importing it takes a second
            return False
        from torch.distributed.tensor import DTensor

        return any(isinstance(parameter, DTensor) for parameter in self.model.parameters())

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the model and optimizer type: names and shapes of all tensors."""
        shapes = [(name, tuple(tensor.shape)) for name, tensor in self._plain.state_dict().items()]
        return f"{type(self.optimizer).__name__}-{zlib.crc32(repr(shapes).encode()):08x}"

    @property
    def _plain(self) -> nn.Module:
        wrapped = isinstance(self.model, DistributedDataParallel)
        plain: nn.Module = self.model.module if wrapped else self.model
        return plain

    def copy(self) -> dict[str, Any]:
        """A copy of all state that is equal in every rank, on the CPU."""
        state = {"more": {name: _copied(part.state_dict()) for name, part in self.more.items()}}
        if not self.sharded:
            state |= {"model": _copied(self._plain.state_dict()), "optimizer": _copied(self.optimizer.state_dict())}
        return state

    def save_shards(self, folder: Path, group: Any) -> Any:
        """Start to write sharded state, called by all ranks; returns a future when the state has been copied."""
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self.model, self.optimizer)
        state = {"model": model, "optimizer": optimizer}
        return dcp.async_save(state, checkpoint_id=str(folder / _SHARDS), process_group=group)

    def load(self, folder: Path, group: Any) -> dict[str, Any]:
        """Load the state saved in ``folder``; returns the data stored beside it."""
        beside: dict[str, Any] = torch.load(folder / _FILE, map_location="cpu", weights_only=True, mmap=True)
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
    """Write the one checkpoint file that only rank 0 writes."""
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
    """State of this process's random number generators: Python's, numpy's if imported, PyTorch's on all devices."""
    state: dict[str, Any] = {"python": _flat(random.getstate()), "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        drawn: Any = np.random.get_state(legacy=True)
        kind, keys, place, has_gauss, gauss = drawn
        state["numpy"] = [kind, torch.from_numpy(keys.astype(np.int64)), place, has_gauss, gauss]
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(states: Sequence[Mapping[str, Any]], rank: int, salt: int) -> None:
    """Restore the generators of this rank; a rank beyond those saved is seeded from ``salt`` and its number."""
    if rank >= len(states):
        torch.manual_seed(hash((salt, rank)))
        random.seed(hash((salt, rank)))
        np.random.seed(hash((salt, rank)) % 2**32)
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
