"""What rounds are worth to a job: its budget times its progress, or the logarithm of it, true or in five slopes.

References: Shockwave (NSDI '23) eq. 7 to 9. The paper's text says logarithm; its published figures come from a
piecewise form whose first slope runs from a millionth to a fifth of the work.
"""

import numpy as np

from shoal.core.arrays import Floats

SHAPES = ("linear", "slopes", "log")
"""Names of the forms of welfare."""

_LEAST = 1e-6
"""Progress below this, as a part of the work, counts as this: the logarithm of nothing is not a number."""

_NOTHING = 1e-300
"""Work below this counts as this: a job that can run nowhere has none to be a part of."""

_BASES = np.array([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
_LOGS = np.log(np.maximum(_BASES, _LEAST))
_LAST = float((_LOGS[-1] - _LOGS[-2]) / (_BASES[-1] - _BASES[-2]))


def part_done(done: Floats, gained: Floats, whole: Floats, shape: str) -> Floats:
    """Progress after each number of rounds, ``gained`` in them: for ``linear`` as a part of what was left before them.

    For the others it is a part of the whole work: their slope falls with what is done already.
    """
    if shape == "linear":
        return gained / np.maximum(whole - done, _NOTHING)[:, None]
    return (done[:, None] + gained) / np.maximum(whole, _NOTHING)[:, None]


def welfare(progress: Floats, shape: str) -> Floats:
    """The logarithm of progress, by name of its form; beyond the whole it goes on rising.

    ``slopes`` joins the logarithms at each fifth by straight lines: slopes of about 61, 3.5, 2.0, 1.4 and 1.1.
    ``linear`` is what those come near to beyond the first: progress itself.
    """
    if shape == "linear":
        return progress
    if shape == "log":
        answer: Floats = np.log(np.maximum(progress, _LEAST))
        return answer
    answer = np.interp(progress, _BASES, _LOGS)
    return answer + _LAST * np.maximum(progress - 1.0, 0.0)
