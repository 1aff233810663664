"""Batch sizes that change while a job trains: Shoal's own, deterministic reading of GNS and Accordion.

The papers describe what triggers a change (the gradient noise scale; critical regimes of training), not a schedule one
could write down, and the public traces only name the mode of a job. These rules give each such job a schedule that has
the shape those papers describe and depends on nothing but the job:

- **gns**: the noise scale grows as training goes on, so the batch size doubles in equal steps of the first half of the
  work until it is the largest the model was measured with. A job k doublings from the largest changes at
  1/(2k), 2/(2k), … k/(2k) of its work.
- **accordion**: the batch is the job's own, small one in critical regimes and the model's largest otherwise. Critical
  are the first 30 % of the work, when the gradient moves most, and 5 % after each learning-rate decay, taken to be at
  half and at three quarters of the work.

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
"""Initial and largest batch in all, least and most samples on a GPU, as a ``Job`` states them."""


def declared(mode: str, batch_size: int, gpus: int, largest: int) -> tuple[str | None, Limits | None]:
    """What the owner of a job of this mode declares: the rule of its script and between which sizes, never when.

    ``batch_size`` and ``largest`` are per GPU. Nothing for static jobs, and for any that has nowhere to scale to.
    """
    if mode not in MODES:
        raise InputError("mode", mode, nearest(mode, MODES))
    if mode == "static" or batch_size >= largest:
        return None, None
    return mode, (batch_size * gpus, largest * gpus, batch_size, largest)


def batch_schedule(mode: str, work: float, batch_size: int, sizes: Sequence[int]) -> Schedule:
    """The schedule of a job of this mode; ``sizes`` are the batch sizes its model was measured with.

    Empty for static jobs, and for any job that already trains with the largest batch.
    """
    if mode not in MODES:
        raise InputError("mode", mode, nearest(mode, MODES))
    largest = max(sizes, default=batch_size)
    if mode == "static" or batch_size >= largest:
        return ()
    if mode == "gns":
        return _gns(work, batch_size, largest)
    changes = [(_WARM_UP, largest)]
    for start, end in _CRITICAL:
        changes += [(start, batch_size), (end, largest)]
    return tuple((share * work, size) for share, size in changes)


def _gns(work: float, batch_size: int, largest: int) -> Schedule:
    steps = []
    while batch_size < largest:
        batch_size = min(2 * batch_size, largest)
        steps.append(batch_size)
    return tuple(((i + 1) / (2 * len(steps)) * work, size) for i, size in enumerate(steps))
