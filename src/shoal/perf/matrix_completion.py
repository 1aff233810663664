"""Low-rank completion of a matrix of which only some entries were observed.

An entry is modelled as mean + row's bias + column's bias + a product of ``rank`` factors, fitted by alternating least
squares with a ridge on everything but the mean. The start is the leading singular vectors of the observed entries, so
the answer depends on the matrix alone: no seed, no order of rows, no history.

References: Koren et al., Matrix Factorization Techniques for Recommender Systems (2009) for the biases;
Candès and Plan, Matrix Completion with Noise (2010) for why it works.
"""

import numpy as np

from shoal.core.arrays import Floats

_SETTLED = 1e-7
"""The fit has converged when no entry moves by more than this, relative to the spread of the observed ones."""

_MOST_SWEEPS = 500

_EASED = 0.7
"""Factor by which the ridge falls from sweep to sweep until it is the given one."""


def complete(observed: Floats, rank: int, ridge: float) -> Floats:
    """The matrix with its NaN entries replaced by a low-rank fit; the observed entries are kept.

    A row or column without any observed entry gets the biases of the other side. ``ridge`` is in units of one entry's
    square: the fewer entries of a row were observed, the closer it stays to the mean.
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
    return np.where(seen, observed, mean + _alternated(centred, seen.astype(np.float64), rank, ridge))


def _alternated(centred: Floats, seen: Floats, rank: int, ridge: float) -> Floats:
    # The last column of either side is its bias, met by a constant 1 on the other side.
    _, values, vectors = np.linalg.svd(centred, full_matrices=False)
    columns = np.zeros((centred.shape[1], rank + 1))
    leading = vectors[:rank].T
    columns[:, : leading.shape[1]] = leading * np.sqrt(values[:rank])
    # With a small ridge from the start the factors may diverge where few entries determine them.
    eased_ridge = float(values[0])
    fitted, spread = np.zeros_like(centred), float(np.abs(centred).max())
    for _ in range(_MOST_SWEEPS):
        eased_ridge *= _EASED
        rows = _solved(centred, seen, columns, max(ridge, eased_ridge))
        columns = _solved(centred.T, seen.T, rows, max(ridge, eased_ridge))
        before = fitted
        fitted = rows[:, :-1] @ columns[:, :-1].T + rows[:, -1:] + columns[:, -1]
        if eased_ridge <= ridge and float(np.abs(fitted - before).max()) <= _SETTLED * spread:
            break
    return fitted


def _solved(centred: Floats, seen: Floats, other: Floats, ridge: float) -> Floats:
    """One side's factors and biases, each row by ridge regression on those of the other side."""
    features = other.copy()
    features[:, -1] = 1.0
    width = features.shape[1]
    products = (features[:, :, None] * features[:, None, :]).reshape(-1, width * width)
    gram = (seen @ products).reshape(-1, width, width) + ridge * np.eye(width)
    target = ((centred - other[:, -1]) * seen) @ features
    solved: Floats = np.linalg.solve(gram, target[:, :, None])[:, :, 0].astype(np.float64, copy=False)
    return solved
