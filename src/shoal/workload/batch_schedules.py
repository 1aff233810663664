"""Deterministic schedules for jobs that change their batch size by the GNS or the Accordion rule.

The papers describe what triggers a change (the gradient noise scale; critical regimes of training), not a schedule, and
the public traces only name a job's mode. The rules here are our own. They have the shape that the papers describe, and
depend on the job alone:

- **gns**: the noise scale grows during training, so the batch size doubles at equal steps in the first half of the work
  until it is the largest the model was measured with. A job k doublings below the largest changes at
  1/(2k), 2/(2k), … k/(2k) of its work.
- **accordion**: the batch size is the job's initial one in critical regimes and the model's largest otherwise. Critical
  are the first 30 % of the work, when the gradient changes most, and 5 % after each learning-rate decay, assumed at
  50 % and 75 % of the work.

References: McCandlish et al., "An Empirical Model of Large-Batch Training" (GNS); Agarwal et al., "Accordion", MLSys
2021; both as used by Zheng et al., "Shockwave", NSDI 2023, §8.1.
"""

from collections.abc import Sequence

from shoal.core.errors import InputError, nearest

MODES = ("static", "accordion", "gns")

_CRITICAL = ((0.5, 0.55), (0.75, 0.8))
_WARM_UP = 0.3

Schedule = tuple[tuple[float, int], ...]

Limits = tuple[int, int, int, int]
"""Samples: initial and largest batch of the gang, least and most on one GPU; the order of ``Job.limits``."""


def declared(mode: str, batch_size: int, gpus: int, largest: int) -> tuple[str | None, Limits | None]:
    """The ``adaptation`` and ``limits`` that a job's owner declares; the times of changes are never declared.

    ``batch_size`` and ``largest`` are samples per GPU. Both values are None for static jobs and for jobs that already
    train with the largest batch.
    """
    if mode not in MODES:
        raise InputError("mode", mode, nearest(mode, MODES))
    if mode == "static" or batch_size >= largest:
        return None, None
    return mode, (batch_size * gpus, largest * gpus, batch_size, largest)


def batch_schedule(mode: str, work: float, batch_size: int, sizes: Sequence[int]) -> Schedule:
    """Pairs of progress and the batch size from there on; ``sizes`` are the sizes its model was measured with.

    Empty for static jobs, and for jobs that already train with the largest batch.
    """
    if mode not in MODES:
        raise InputError("mode", mode, nearest(mode, MODES))
    largest = max(sizes, default=batch_size)
    if mode == "static" or batch_size >= largest:
        return ()
    if mode == "gns":
        return _gns_schedule(work, batch_size, largest)
    changes = [(_WARM_UP, largest)]
    for start, end in _CRITICAL:
        changes += [(start, batch_size), (end, largest)]
    return tuple((share * work, size) for share, size in changes)


def _gns_schedule(work: float, batch_size: int, largest: int) -> Schedule:
    steps = []
    while batch_size < largest:
        batch_size = min(2 * batch_size, largest)
        steps.append(batch_size)
    return tuple(((i + 1) / (2 * len(steps)) * work, size) for i, size in enumerate(steps))
