"""The gradient noise scale φ of a training: the batch size in samples at which noise is as large as the gradient.

φ = tr(PΣPᵀ)/|Pg|², with g the true gradient, Σ the covariance of single samples' gradients and P the optimizer's
preconditioner (1 for SGD, one over the root of the second moment for Adam and similar). It is estimated from the
differences between gradients of a few batches: those of replicas, those of accumulated passes, or, with one replica and
one pass, those of two steps in a row.

The two figures of a `NoiseEstimate` are unbiased when the batches are independent and P is the same for all and was
chosen before them. Their quotient is not, so they are averaged separately and divided last.

References: McCandlish et al., 2018, appendix A.1; Qiao et al., OSDI 2021, §3.1 (preconditioning, the differenced form).
"""

from dataclasses import dataclass

from shoal.core.errors import InputError

NOISIEST = 1e9
"""Upper limit of φ in samples: beyond it every batch is as efficient as the smallest."""


@dataclass(frozen=True, slots=True)
class NoiseEstimate:
    """From one step: ``square`` estimates |Pg|², ``variance`` tr(PΣPᵀ) of single samples. Either may be below 0."""

    square: float
    variance: float


def from_norms(mean_local_square: float, square_of_mean: float, local_batch: int, count: int) -> NoiseEstimate:
    """The estimate from two squared norms of ``count`` ≥ 2 gradients over ``local_batch`` samples each.

    ``mean_local_square`` is the mean of their squared norms, ``square_of_mean`` the squared norm of their mean. With R
    replicas and s accumulated passes these are R·(s + 1) gradients of m samples, or R of m·(s + 1).
    """
    if count < 2 or local_batch < 1:
        raise InputError("count, local_batch", (count, local_batch), "needs two gradients or more, of a sample or more")
    square = (count * square_of_mean - mean_local_square) / (count - 1)
    return NoiseEstimate(square, local_batch * (mean_local_square - square))


@dataclass(frozen=True, slots=True)
class NoiseScale:
    """A running φ: both figures as exponential averages, corrected for the few observations at first."""

    square: float = 0.0
    variance: float = 0.0
    weight: float = 0.0

    def observed(self, estimate: NoiseEstimate, decay: float = 0.999) -> "NoiseScale":
        """Return the average with one more step; ``decay`` is the factor on the weight of the steps before it.

        A step at k times the initial batch counts as k steps: give the k-th power of the usual decay.
        """
        if not 0 <= decay < 1:
            raise InputError("decay", decay, "must be at least 0 and below 1")
        fresh = 1.0 - decay
        return NoiseScale(
            decay * self.square + fresh * estimate.square,
            decay * self.variance + fresh * estimate.variance,
            decay * self.weight + fresh,
        )

    @property
    def mean(self) -> NoiseEstimate:
        """The averaged figures; zeros before the first observation."""
        if self.weight == 0:
            return NoiseEstimate(0.0, 0.0)
        return NoiseEstimate(self.square / self.weight, self.variance / self.weight)

    @property
    def samples(self) -> float:
        """φ in samples, from 0 to `NOISIEST`: 0 without measurable noise, the limit with noise and no gradient."""
        if self.variance <= 0:
            return 0.0
        if self.variance >= NOISIEST * self.square:
            return NOISIEST
        return self.variance / self.square
