"""Training state as bytes for joining workers, and one buffer for everything a step sums over ranks.

References: Hwang et al., NSDI 2021, §4.3 (new GPUs receive the latest parameters from one of the existing workers).
"""

import io
import pickle
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from shoal.core.errors import InputError

_PLAIN: Mapping[tuple[str, str], Any] = {
    (kind.__module__, kind.__qualname__): kind
    for kind in (OrderedDict, defaultdict, Counter, deque, set, frozenset, complex, bytearray, torch.Size, torch.device)
}
"""By module and name, types that a packed state may hold beside pickle's own; data types are allowed too."""

_ALIGN_BYTES = 16
_FEW_RANKS = 64


def pack(state: object) -> tuple[Tensor, Tensor]:
    """Pack a state into two byte tensors: the pickled structure and the contents of all tensors."""
    contents: list[Tensor] = []
    offset = 0

    class Skeleton(pickle.Pickler):
        def persistent_id(self, obj: object) -> object:
            nonlocal offset
            if not isinstance(obj, Tensor):
                return None
            content = obj.detach().contiguous().reshape(-1).view(torch.uint8)
            padding = -len(content) % _ALIGN_BYTES
            contents.extend((content, content.new_zeros(padding)))
            begin, offset = offset, offset + len(content) + padding
            return begin, len(content), obj.dtype, tuple(obj.shape)

    shape = io.BytesIO()
    Skeleton(shape).dump(state)
    device = contents[0].device if contents else torch.device("cpu")
    whole = torch.cat([content.to(device) for content in contents]) if contents else torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(shape.getbuffer()), dtype=torch.uint8), whole


def unpack(shape: Tensor, contents: Tensor) -> Any:
    """Unpack a state; its tensors are views of ``contents``.

    Only plain values, collections and tensors are made: a pickle that names anything else raises ``InputError``, since
    unpickling it would run code that another process chose.
    """

    class Restored(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            found = _PLAIN.get((module, name)) or (getattr(torch, name, None) if module == "torch" else None)
            if found in _PLAIN.values() or isinstance(found, torch.dtype):
                return found
            hint = "is no plain value, collection or tensor; keep it out of the state that workers share"
            raise InputError("state", f"{module}.{name}", hint)

        def persistent_load(self, pid: Any) -> Tensor:
            begin, length, dtype, size = pid
            return contents[begin : begin + length].view(dtype).reshape(size)

    return Restored(io.BytesIO(shape.cpu().numpy().tobytes())).load()


class ReduceBuffer:
    """One buffer for everything a step sums over ranks: gradients, running statistics, loss, and one number per rank.

    Gradients are summed in single precision or better; a parameter without a gradient counts as zero. Running
    statistics (floating-point buffers) are averaged, weighted by each rank's share of the step. Integer buffers are not
    shared between switches.
    """

    def __init__(self, model: nn.Module) -> None:
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._statistics = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
        self._before = [buffer.clone() for buffer in self._statistics]
        values: list[Tensor] = [*self._parameters, *self._statistics]
        dtype = torch.float64 if any(value.dtype == torch.float64 for value in values) else torch.float32
        self._numbers = sum(value.numel() for value in values)
        self._storage = torch.zeros(self._numbers + 1 + _FEW_RANKS, dtype=dtype, device=values[0].device)
        self._views = self._cut(values)

    def begin(self) -> None:
        """Begin a step: clear the gradients, and keep a copy of the running statistics for `undo`."""
        for parameter in self._parameters:
            parameter.grad = None
        for kept, buffer in zip(self._before, self._statistics, strict=True):
            kept.copy_(buffer)

    def undo(self) -> None:
        """Restore the running statistics after a failed step."""
        for kept, buffer in zip(self._before, self._statistics, strict=True):
            buffer.copy_(kept)

    def enter(self, loss: Tensor, share: float, ready: int, rank: int, world: int) -> Tensor:
        """Fill the buffer with this rank's gradients, loss, statistics times its share, and announced generation."""
        whole = self._whole(world)
        gradients, statistics = self._split()
        for view, parameter in zip(gradients, self._parameters, strict=True):
            if parameter.grad is None:
                view.zero_()
            else:
                view.copy_(parameter.grad)
        for view, buffer in zip(statistics, self._statistics, strict=True):
            view.copy_(buffer).mul_(share)
        whole[self._numbers] = loss
        whole[self._numbers + 1 :] = 0
        whole[self._numbers + 1 + rank] = ready
        return whole

    def settle(self, world: int) -> tuple[float, list[int]]:
        """Read the summed buffer into gradients and statistics; return the loss and the announced generations."""
        gradients, statistics = self._split()
        for view, parameter in zip(gradients, self._parameters, strict=True):
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(view)
        for view, buffer in zip(statistics, self._statistics, strict=True):
            buffer.copy_(view)
        loss, *ready = self._whole(world)[self._numbers :].tolist()
        return loss, [int(ready) for ready in ready]

    def _whole(self, world: int) -> Tensor:
        length = self._numbers + 1 + world
        if len(self._storage) < length:
            self._storage = self._storage.new_zeros(length)
            self._views = self._cut([*self._parameters, *self._statistics])
        return self._storage[:length]

    def _split(self) -> tuple[list[Tensor], list[Tensor]]:
        return self._views[: len(self._parameters)], self._views[len(self._parameters) :]

    def _cut(self, values: Sequence[Tensor]) -> list[Tensor]:
        ends = list(accumulate(value.numel() for value in values))
        return [
            self._storage[end - value.numel() : end].view_as(value) for end, value in zip(ends, values, strict=True)
        ]


def hand_over(packed: tuple[Tensor, Tensor], send: Callable[[Tensor], None]) -> None:
    """Send a packed state in three messages: two lengths, the structure, the contents."""
    shape, contents = packed
    send(torch.tensor([len(shape), len(contents)]).to(contents.device))
    send(shape.to(contents.device))
    send(contents)


def take_over(receive: Callable[[Tensor], None], device: torch.device) -> Any:
    """Receive a state sent by `hand_over`."""
    lengths = torch.zeros(2, dtype=torch.int64, device=device)
    receive(lengths)
    shape, contents = (torch.empty(int(length), dtype=torch.uint8, device=device) for length in lengths)
    receive(shape)
    receive(contents)
    return unpack(shape, contents)
