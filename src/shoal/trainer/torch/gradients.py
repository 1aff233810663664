"""Squared gradient norms, from which the gradient noise scale is estimated.

Measured in some steps only, as often as the time budget allows: once on a rank's own gradients before they are
averaged and once on the average. With one rank, two consecutive steps are compared, which needs a copy of the first
one's gradients. With Adam and its variants, gradients are divided by the root of their second moment, as the optimizer
does.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from shoal.core.errors import InputError
from shoal.perf.noise import NoiseEstimate, from_norms


class Gradients:
    """Gradient measurements of one model in this rank; ``world`` is the number of ranks."""

    def __init__(self, model: Any, optimizer: Any, world: int) -> None:
        self._optimizer = optimizer
        self._world = world
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._looking = self._comparing = False
        self._copied = False
        self._before: list[torch.Tensor] = []
        self._before_square = 0.0
        self.spent = 0.0
        """Seconds spent on measurements so far."""
        self._ready_at = self._reduced_at = 0.0
        self.local_square = 0.0
        """Squared norm of this rank's own gradient in the measured step."""
        self.mean_square = 0.0
        """Squared norm of the gradient averaged over ranks."""
        self._pair: tuple[float, float] | None = None
        if world > 1:
            if not isinstance(model, DistributedDataParallel):
                hint = "gradients can be measured of DistributedDataParallel, or of one rank; leave out adapt="
                raise InputError("model", type(model).__name__, hint)
            self._group = model.process_group
            model.register_comm_hook(None, self._reduce)

    def begin(self, *, look: bool) -> None:
        """Start a step; ``look`` asks to measure it.

        The step after a copied one completes the comparison if it is measured too.
        """
        self._comparing, self._copied = look and self._copied, False
        self._looking = look and not self._comparing
        self.local_square = 0.0
        self._ready_at = self._reduced_at = 0.0

    @property
    def copied(self) -> bool:
        """Whether the last step's gradients were copied for comparison with the next step's."""
        return self._copied

    def before_step(self) -> None:
        """Measure, if this step is to be measured; called when gradients are averaged and not yet used."""
        if self._looking or self._comparing:
            self.spent += _seconds(self._look, self._parameters[0].device)

    def _look(self) -> None:
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        seen = self._preconditioned(gradients, [p for p in self._parameters if p.grad is not None])
        self.mean_square = _square(seen)
        if self._world > 1:
            return
        if self._comparing:
            squares = self._before_square + self.mean_square
            self._pair = squares / 2, (squares + 2 * _product(self._before, seen)) / 4
            return
        # With SGD these are the gradients themselves, which the next step overwrites.
        if not self._before:
            self._before = [torch.empty_like(tensor) for tensor in seen]
        torch._foreach_copy_(self._before, seen)
        self._before_square, self._copied = self.mean_square, True

    def compared(self, batch: int) -> NoiseEstimate | None:
        """Return the noise estimate of two consecutive steps of a single rank, once; else None."""
        if self._pair is None:
            return None
        pair, self._pair = self._pair, None
        return from_norms(*pair, batch, 2)

    @property
    def exposed(self) -> float:
        """Seconds of the last step between the end of the backward pass and the end of averaging."""
        return max(0.0, self._reduced_at - self._ready_at) if self._reduced_at and self._ready_at else 0.0

    def _reduce(self, _state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if self._looking:
            self.spent += _seconds(partial(self._look_at, bucket), bucket.buffer().device)
        if bucket.is_last():
            self._ready_at = time.perf_counter()
        mean = bucket.buffer().div_(self._world)
        # The group's own method: the wrapper of torch.distributed costs a short step as much as a measurement.
        return self._group.allreduce([mean]).get_future().then(self._reduced)

    def _look_at(self, bucket: dist.GradBucket) -> None:
        self.local_square += _square(self._preconditioned(bucket.gradients(), bucket.parameters()))

    def _reduced(self, future: Any) -> Any:
        self._reduced_at = time.perf_counter()
        return future.value()[0]

    def _preconditioned(self, gradients: Sequence[Any], parameters: Sequence[Any]) -> list[torch.Tensor]:
        """Return gradients divided by the root of their second moment, if the optimizer keeps one."""
        group = self._optimizer.param_groups[0]
        states = [self._optimizer.state.get(parameter, {}) for parameter in parameters]
        if "betas" not in group or not all("exp_avg_sq" in state and "step" in state for state in states):
            return list(gradients)
        beta, epsilon = group["betas"][1], group["eps"]
        corrections = [1.0 - beta ** float(state["step"]) for state in states]
        roots = torch._foreach_sqrt([s["exp_avg_sq"] / c for s, c in zip(states, corrections, strict=True)])
        torch._foreach_add_(roots, epsilon)
        return list(torch._foreach_div(list(gradients), roots))


def _seconds(look: Callable[[], None], device: torch.device) -> float:
    """Run a measurement and return its seconds.

    On a GPU CUDA events measure them: the host's clock would include queued work.
    """
    if device.type != "cuda":
        began = time.perf_counter()
        look()
        return time.perf_counter() - began
    stream = torch.cuda.current_stream(device)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record(stream)
    look()
    end.record(stream)
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def _square(tensors: Sequence[torch.Tensor]) -> float:
    norms = torch._foreach_norm(list(tensors))
    return float(torch.stack([norm.double() for norm in norms]).square().sum())


def _product(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> float:
    return float(sum(torch.dot(a.flatten(), b.flatten()).double() for a, b in zip(some, others, strict=True)))
