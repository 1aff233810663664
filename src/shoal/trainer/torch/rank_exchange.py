"""Sums over all ranks, requested at one step and available at the next without waiting.

Every rank gets the same sums at the same step, so that decisions based on them happen in all ranks at once. The sums
use a gloo group of their own on CPUs, beside the gradients and while the next step is computed. Other values that ranks
exchange are plain ones and tensors; nothing that could run code is unpickled.
"""

import io
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class RankExchange:
    """Exchange among the ranks of the default process group; a single process exchanges with itself."""

    def __init__(self) -> None:
        self._alone = not dist.is_initialized() or dist.get_world_size() == 1
        self.group: Any = None if self._alone else dist.new_group(backend="gloo")
        self._pending: torch.Tensor | list[float] | None = None
        self._work: Any = None

    def exchange(self, value: Sequence[float]) -> list[float] | None:
        """Submit this step's numbers, as many as every rank does; return the last exchange's sums, None at first."""
        previous = self._previous()
        if self._alone:
            self._pending = [float(value) for value in value]
        else:
            self._pending = torch.tensor(value, dtype=torch.float64)
            self._work = dist.all_reduce(self._pending, group=self.group, async_op=True)
        return previous

    def _previous(self) -> list[float] | None:
        if self._work is not None:
            self._work.wait()
        return self._pending.tolist() if isinstance(self._pending, torch.Tensor) else self._pending

    def settle(self) -> None:
        """Wait for the exchange under way: a rank that ends earlier would break it for the others."""
        if self._work is not None:
            self._work.wait()
            self._work = None

    def gather(self, value: Any) -> list[Any]:
        """Return the ``value`` of every rank, in rank order; blocks until all ranks call it."""
        if self._alone:
            return [value]
        mine, world = _to_bytes(value), dist.get_world_size()
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(world)]
        dist.all_gather(sizes, torch.tensor([len(mine)]), group=self.group)
        padded = torch.zeros(int(max(sizes)), dtype=torch.uint8)
        padded[: len(mine)] = mine
        parts = [torch.empty_like(padded) for _ in range(world)]
        dist.all_gather(parts, padded, group=self.group)
        return [_from_bytes(part[: int(size)]) for part, size in zip(parts, sizes, strict=True)]

    def broadcast(self, value: Any) -> Any:
        """Return the ``value`` of rank 0; blocks until all ranks call it."""
        if self._alone:
            return value
        first = dist.get_rank() == 0
        data = _to_bytes(value) if first else torch.empty(0, dtype=torch.uint8)
        size = torch.tensor([len(data)])
        dist.broadcast(size, src=0, group=self.group)
        data = data if first else torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(data, src=0, group=self.group)
        return _from_bytes(data)


def _to_bytes(value: Any) -> Tensor:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8)


def _from_bytes(data: Tensor) -> Any:
    """Return plain values and tensors; torch refuses everything else, whose unpickling could run code."""
    return torch.load(io.BytesIO(data.numpy().tobytes()), weights_only=True)
