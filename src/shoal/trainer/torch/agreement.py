"""What ranks know together: sums over all of them, asked for at one step and known at the next, waited for by nobody.

Every rank gets the same sums at the same step, so that whatever follows from them happens in all ranks at once. Sums
travel over a group of their own, on processors, beside the gradients and while the next step is computed.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist


class Agreement:
    """The ranks of the default process group, or this process alone where there is none."""

    def __init__(self) -> None:
        self._alone = not dist.is_initialized() or dist.get_world_size() == 1
        self.group: Any = None if self._alone else dist.new_group(backend="gloo")
        self._mailed: torch.Tensor | list[float] | None = None
        self._work: Any = None

    def exchange(self, mine: Sequence[float]) -> list[float] | None:
        """Give this step's figures, as many in every rank; the sums of the last exchange's, None in the first."""
        heard = self._heard()
        if self._alone:
            self._mailed = [float(value) for value in mine]
        else:
            self._mailed = torch.tensor(mine, dtype=torch.float64)
            self._work = dist.all_reduce(self._mailed, group=self.group, async_op=True)
        return heard

    def _heard(self) -> list[float] | None:
        if self._work is not None:
            self._work.wait()
        return self._mailed.tolist() if isinstance(self._mailed, torch.Tensor) else self._mailed

    def settle(self) -> None:
        """Wait for the sums under way: a rank that leaves before would break them off for the others."""
        if self._work is not None:
            self._work.wait()
            self._work = None

    def gather(self, mine: Any) -> list[Any]:
        """What each rank gives, in rank order; every rank waits for all."""
        if self._alone:
            return [mine]
        given: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(given, mine, group=self.group)
        return given

    def choose(self, mine: Any) -> Any:
        """What rank 0 gives; every rank waits for it."""
        if self._alone:
            return mine
        chosen = [mine]
        dist.broadcast_object_list(chosen, src=0, group=self.group)
        return chosen[0]
