"""Low-rank completion of a matrix of which only some entries were seen.

An entry is taken to be mean + row's bias + column's bias + a product of ``rank`` factors, fitted by alternating least
squares with a ridge on everything but the mean. The start is the leading singular vectors of what was seen, so the
answer depends on the matrix alone: no seed, no order of rows, no history.

References: Koren, Bell, Volinsky, Matrix Factorization Techniques for Recommender Systems (2009) for the biases;
Candès and Plan, Matrix Completion with Noise (2010) for why it works.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shoal.core.arrays import Floats

_SETTLED = 1e-7
"""The fit has settled when no entry moves by more than this, relative to the spread of what was seen."""

_MOST_SWEEPS = 500

_EASED = 0.7
"""By how much the ridge eases from sweep to sweep until it is the one asked for."""

_WITHHELD = 0.1
"""The part of what was seen that is withheld, and then predicted, for the held-out error."""


@dataclass(frozen=True)
class Completion:
    """A completed matrix and how far to trust it; errors are root mean squares in the matrix's own unit.

    ``fitted`` is the smooth low-rank matrix; ``matrix`` keeps every entry that was seen and fills in the others.
    """

    observed: Floats
    fitted: Floats
    rank: int
    ridge: float

    @cached_property
    def matrix(self) -> Floats:
        """What was seen where it was seen, the fit elsewhere."""
        return np.where(np.isnan(self.observed), self.fitted, self.observed)

    @cached_property
    def residual(self) -> float:
        """How far the fit is from what was seen: how much of that a matrix of this rank cannot say."""
        return _rms(self.fitted - self.observed)

    @cached_property
    def held_out(self) -> float:
        """How far a fit without a seeded tenth of the seen entries is from these; NaN if fewer than 2 were seen."""
        seen = np.flatnonzero(~np.isnan(self.observed))
        if len(seen) < 2:
            return float("nan")
        withheld = np.random.default_rng(0).permutation(seen)[: max(1, int(len(seen) * _WITHHELD))]
        rest = self.observed.copy()
        rest.flat[withheld] = np.nan
        return _rms(complete(rest, self.rank, self.ridge).fitted.flat[withheld] - self.observed.flat[withheld])


def complete(observed: Floats, rank: int, ridge: float) -> Completion:
    """Complete a matrix whose unseen entries are NaN; a row or column nobody saw gets the biases of the other side.

    ``ridge`` is in units of one observation's square: the fewer of a row were seen, the closer it stays to the mean.
    """
    if observed.ndim != 2:
        raise ValueError(f"a matrix has 2 dimensions, not {observed.ndim}")
    if rank < 0 or not ridge > 0:
        raise ValueError(f"rank must be at least 0 and ridge positive, not {rank} and {ridge}")
    seen = ~np.isnan(observed)
    if not seen.any():
        raise ValueError("nothing of the matrix was seen")
    if not np.isfinite(observed[seen]).all():
        raise ValueError("what was seen of the matrix must be finite")
    mean = float(observed[seen].mean())
    centred = np.where(seen, observed - mean, 0.0)
    return Completion(observed, mean + _alternated(centred, seen.astype(np.float64), rank, ridge), rank, ridge)


def _alternated(centred: Floats, seen: Floats, rank: int, ridge: float) -> Floats:
    # The last column of either side is its bias, met by a constant 1 on the other side.
    _, values, vectors = np.linalg.svd(centred, full_matrices=False)
    columns = np.zeros((centred.shape[1], rank + 1))
    leading = vectors[:rank].T
    columns[:, : leading.shape[1]] = leading * np.sqrt(values[:rank])
    # Straight at a small ridge the factors may run off to where few entries pin them, and never come back.
    strong = float(values[0])
    fitted, spread = np.zeros_like(centred), float(np.abs(centred).max())
    for _ in range(_MOST_SWEEPS):
        strong *= _EASED
        rows = _solved(centred, seen, columns, max(ridge, strong))
        columns = _solved(centred.T, seen.T, rows, max(ridge, strong))
        before = fitted
        fitted = rows[:, :-1] @ columns[:, :-1].T + rows[:, -1:] + columns[:, -1]
        if strong <= ridge and float(np.abs(fitted - before).max()) <= _SETTLED * spread:
            break
    return fitted


def _solved(centred: Floats, seen: Floats, other: Floats, ridge: float) -> Floats:
    """One side's factors and bias, each row by ridge regression on the other side's."""
    features = other.copy()
    features[:, -1] = 1.0
    width = features.shape[1]
    products = (features[:, :, None] * features[:, None, :]).reshape(-1, width * width)
    gram = (seen @ products).reshape(-1, width, width) + ridge * np.eye(width)
    target = ((centred - other[:, -1]) * seen) @ features
    solved: Floats = np.linalg.solve(gram, target[:, :, None])[:, :, 0].astype(np.float64, copy=False)
    return solved


def _rms(error: Floats) -> float:
    return float(np.sqrt(np.nanmean(error**2)))
