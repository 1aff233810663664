"""Student's interval of a mean: one rule for the reproductions and the grounds."""

from collections.abc import Sequence
from math import inf, sqrt
from statistics import stdev

CONFIDENCE = 0.95


def half_width(values: Sequence[float]) -> float:
    """Return the half-width of the 95 % interval of the values' mean; infinite for fewer than two values."""
    if len(values) < 2:
        return inf
    from scipy.stats import t

    return float(t.ppf((1.0 + CONFIDENCE) / 2.0, len(values) - 1)) * stdev(values) / sqrt(len(values))
