"""Sums over all ranks, requested at one step and available at the next without waiting.

Every rank gets the same sums at the same step, so that decisions based on them happen in all ranks at once. The sums
use a gloo group of their own on CPUs, beside the gradients and while the next step is computed.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist


class RankExchange:
    """Exchange among the ranks of the default process group; a single process exchanges with itself."""

    def __init__(self) -> None:
        self._alone = not dist.is_initialized() or dist.get_world_size() == 1
        self.group: Any = None if self._alone else dist.new_group(backend="gloo")
        self._pending: torch.Tensor | list[float] | None = None
        self._work: Any = None

    def exchange(self, value: Sequence[float]) -> list[float] | None:
        """Submit this step's numbers, as many in every rank; return the sums of the exchange before, None at first."""
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
        given: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(given, value, group=self.group)
        return given

    def broadcast(self, value: Any) -> Any:
        """Return the ``value`` of rank 0; blocks until all ranks call it."""
        if self._alone:
            return value
        chosen = [value]
        dist.broadcast_object_list(chosen, src=0, group=self.group)
        return chosen[0]
