"""The best batch on a job's present seats, by fitted step times corrected by the times measured there.

A fit explains all measurements of a job with a few parameters and is a few percent off everywhere, which is enough to
miss the best batch. Where a batch was timed, the measured time is used; between timed batches the correction is linear
in the logarithms, and beyond them it is that of the nearest. Another batch size needs no restart, so timing a
neighbouring one is cheap.
"""

from collections.abc import Mapping

import numpy as np

from shoal.core.batch_limits import BatchLimits
from shoal.core.goodput import StepFit
from shoal.core.topology import Locality
from shoal.perf.goodput import efficiency, iteration_seconds

Timed = Mapping[int, tuple[float, float]]
"""By samples of a pass on each GPU: seconds of a pass alone, and of a synchronised pass. Not empty."""


def range_of(limits: BatchLimits, most_local: int, gpus: int, accumulation: int) -> tuple[int, int]:
    """The fewest and the most samples of a pass within the limits; the second may be below the first."""
    passes = gpus * (accumulation + 1)
    least = max(limits.least_local, -(-limits.initial // passes))
    return least, min(most_local, limits.most_local, limits.most // passes)


def best_timed(
    fit: StepFit, limits: BatchLimits, noise: float, gpus: int, locality: Locality, accumulation: int, timed: Timed
) -> int:
    """The samples of a pass with the highest goodput at this accumulation; 0 where the limits allow none."""
    least, most = range_of(limits, fit.most_local, gpus, accumulation)
    if most < least:
        return 0
    local, known = np.arange(least, most + 1), np.array(sorted(timed))
    passing, stepping = np.array([timed[n] for n in known.tolist()]).T
    off_pass = np.log(passing / (fit.compute[0] + fit.compute[1] * known))
    off_step = np.log(stepping / iteration_seconds(fit, known, 0, gpus, locality))
    between = np.log(local), np.log(known)
    passes = (fit.compute[0] + fit.compute[1] * local) * np.exp(np.interp(*between, off_pass))
    steps = iteration_seconds(fit, local, 0, gpus, locality) * np.exp(np.interp(*between, off_step))
    batch = gpus * local * (accumulation + 1)
    goodput = batch / (steps + accumulation * passes) * efficiency(noise, limits.initial, batch)
    return int(local[goodput.argmax()])


def neighbour(local: int, timed: Timed, apart: float, least: int, most: int) -> int | None:
    """Return a number of samples of a pass to time next to ``local``; None if all near ones were timed.

    It is larger by up to the fraction ``apart`` or, where a number within that was timed, smaller.
    """
    more, less = min(round(local * (1.0 + apart)), most), max(round(local / (1.0 + apart)), least)
    if more > local and not any(local < n <= more for n in timed):
        return more
    if less < local and not any(less <= n < local for n in timed):
        return less
    return None
