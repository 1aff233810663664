"""Gradient accumulation for a training loop that is not written for it.

The loop calls zero_grad, backward and step once per pass. Until the last pass of a step the optimizer's and the
schedulers' calls have no effect and ranks do not synchronise gradients. Each pass's gradients are scaled by the pass's
weight on their way into the model. So, whatever the lengths of the passes, the sum over passes and the mean over ranks
are the gradient of the mean loss over the whole step.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from shoal.trainer.samples import Pass


class AccumulationGate:
    """Wraps an optimizer, its schedulers and the model's backward pass; outside of steps it changes nothing."""

    def __init__(self, model: Any, optimizer: Any, schedulers: Iterable[Any]) -> None:
        self._model = model
        self._weight = 1.0
        self._first = self._last = True
        self._stepped = False
        self._optimizer = optimizer
        self.rate_factor = 1.0
        """Factor applied to the optimizer's learning rates during a step."""
        self.before_step: Callable[[], None] = lambda: None
        optimizer.zero_grad = self._clearing(optimizer.zero_grad)
        optimizer.step = self._stepping(optimizer.step)
        for scheduler in schedulers:
            # An attribute would become part of the scheduler's state, so the method is replaced on a subclass.
            own = type(scheduler)
            scheduler.__class__ = type(own.__name__, (own,), {"step": self._scheduling(own.step)})
        self._weighing: Any = None

    def enter(self, part: Pass, number: int, count: int) -> None:
        """Announce that the next forward and backward are pass ``number`` of ``count``."""
        if count == 1 and part.weight == self._weight == 1.0:
            return
        self._weigh(part.weight)
        self._stepped = False
        first, last = number == 0, number == count - 1
        if last != self._last:
            _synchronise(self._model, last)
        self._first, self._last = first, last

    def leave(self) -> None:
        """End the step: until the next one, calls have their usual effect."""
        self._stepped = False
        if self._weight != 1.0:
            self._weigh(1.0)
        if not self._last:
            _synchronise(self._model, True)
        self._first = self._last = True

    def _clearing(self, clear: Callable[..., Any]) -> Callable[..., Any]:
        def zero_grad(*args: Any, **kwargs: Any) -> Any:
            # Clear before the first pass and after the optimizer's step; between passes the sum must stay.
            if self._last if self._stepped else self._first:
                return clear(*args, **kwargs)
            return None

        return zero_grad

    def _stepping(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def gated(*args: Any, **kwargs: Any) -> Any:
            self._stepped = True
            if not self._last:
                return None
            self.before_step()
            groups, factor = self._optimizer.param_groups, self.rate_factor
            if factor == 1.0:
                return step(*args, **kwargs)
            rates = [group["lr"] for group in groups]
            for group in groups:
                group["lr"] = group["lr"] * factor
            try:
                return step(*args, **kwargs)
            finally:
                for group, rate in zip(groups, rates, strict=True):
                    group["lr"] = rate

        # Schedulers read attributes of this method to detect a wrong order of calls.
        gated.__dict__.update(getattr(step, "__dict__", {}))
        return gated

    def _scheduling(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def gated(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            return step(scheduler, *args, **kwargs) if self._last else None

        return gated

    def _weigh(self, weight: float) -> None:
        """Set the weight of the next passes; 1 removes the hook, since a module is faster without one."""
        self._weight = weight
        if weight != 1.0 and self._weighing is None:
            self._weighing = self._model.register_forward_hook(self._weighed)
        elif weight == 1.0 and self._weighing is not None:
            self._weighing.remove()
            self._weighing = None

    def _weighed(self, _module: nn.Module, _inputs: Any, outputs: Any) -> Any:
        if not torch.is_grad_enabled():
            return outputs
        return pytree.tree_map(partial(_weighed, weight=self._weight), outputs)


def _weighed(value: Any, *, weight: float) -> Any:
    if isinstance(value, torch.Tensor) and value.requires_grad:
        value.register_hook(lambda gradient: gradient * weight)
    return value


def _synchronise(model: Any, wanted: bool) -> None:
    if hasattr(model, "require_backward_grad_sync"):  # DistributedDataParallel
        model.require_backward_grad_sync = wanted
    elif hasattr(model, "set_requires_gradient_sync"):  # fully_shard
        model.set_requires_gradient_sync(wanted)
