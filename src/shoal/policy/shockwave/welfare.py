"""The welfare of a job by its progress: linear, the logarithm, or the logarithm in five slopes.

References: Shockwave (NSDI '23) eq. 7 to 9. The paper's text says logarithm; its published figures come from a
piecewise form whose first slope runs from a millionth to a fifth of the work.
"""

import numpy as np

from shoal.core.arrays import Floats

SHAPES = ("linear", "slopes", "log")
"""Names of the forms of welfare."""

_LEAST = 1e-6
"""Progress below this, as a fraction of the work, counts as this: the logarithm of 0 is infinite."""

_NOTHING = 1e-300
"""Work below this counts as this: a job that can run nowhere has none."""

_BASES = np.array([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
_LOGS = np.log(np.maximum(_BASES, _LEAST))
_LAST = float((_LOGS[-1] - _LOGS[-2]) / (_BASES[-1] - _BASES[-2]))


def part_done(done: Floats, gained: Floats, whole: Floats, shape: str) -> Floats:
    """Progress after each number of rounds: for ``linear`` the fraction ``gained`` of the work left before them.

    For the others it is a fraction of the whole work: their slope falls with the work done already.
    """
    if shape == "linear":
        return gained / np.maximum(whole - done, _NOTHING)[:, None]
    return (done[:, None] + gained) / np.maximum(whole, _NOTHING)[:, None]


def welfare(progress: Floats, shape: str) -> Floats:
    """Welfare of progress in this shape; it keeps rising beyond the whole work.

    ``slopes`` joins the logarithms at each fifth by straight lines: slopes of about 61, 3.5, 2.0, 1.4 and 1.1.
    """
    if shape == "linear":
        return progress
    if shape == "log":
        answer: Floats = np.log(np.maximum(progress, _LEAST))
        return answer
    answer = np.interp(progress, _BASES, _LOGS)
    return answer + _LAST * np.maximum(progress - 1.0, 0.0)
