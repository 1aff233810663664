"""The gradient noise scale φ of a training: how many samples it takes for the noise to be as large as the gradient.

φ = tr(PΣPᵀ)/|Pg|², with g the true gradient, Σ the covariance of single samples' gradients and P what the optimizer
multiplies gradients with (nothing for SGD, one over the root of the second moment for Adam and its kin). It is told
from how far gradients of a few batches lie apart: those of replicas, those of passes that are added up, or, with one
replica and one pass, those of two steps in a row. Plain numbers and numpy arrays; no framework.

A ``NoiseEstimate``'s two figures are unbiased when the batches are independent and all seen through
the same P, chosen before they were. Their quotient is not, so they are averaged apart and divided last.

References: McCandlish et al., 2018, appendix A.1; Qiao et al., OSDI 2021, §3.1 (preconditioning, the differenced form).
"""

from dataclasses import dataclass

from shoal.core.errors import InputError

NOISIEST = 1e9
"""The most φ is said to be, in samples: beyond it any batch is as efficient as the smallest."""


@dataclass(frozen=True, slots=True)
class NoiseEstimate:
    """From one step: ``square`` estimates |Pg|², ``variance`` tr(PΣPᵀ) of single samples. Either may be below 0."""

    square: float
    variance: float


def from_norms(mean_local_square: float, square_of_mean: float, local_batch: int, count: int) -> NoiseEstimate:
    """From two squared norms of ``count`` ≥ 2 gradients over ``local_batch`` samples each, and of no gradient itself.

    ``mean_local_square`` is the mean of their squared norms, ``square_of_mean`` the squared norm of their mean: with
    R replicas and s added passes, R·(s + 1) gradients of m samples, or R of m·(s + 1).
    """
    if count < 2 or local_batch < 1:
        raise InputError("count, local_batch", (count, local_batch), "needs two gradients or more, of a sample or more")
    square = (count * square_of_mean - mean_local_square) / (count - 1)
    return NoiseEstimate(square, local_batch * (mean_local_square - square))


@dataclass(frozen=True, slots=True)
class NoiseScale:
    """A running φ: both figures averaged with weights that fall off, corrected for how little was seen at first."""

    square: float = 0.0
    variance: float = 0.0
    weight: float = 0.0

    def observed(self, estimate: NoiseEstimate, decay: float = 0.999) -> "NoiseScale":
        """With one more step seen; ``decay`` is what is left of the weight of the steps before it.

        A step at k times the initial batch is worth k of the initial: give the k-th power of the usual decay.
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
        """The averaged figures; zeros before anything was seen."""
        if self.weight == 0:
            return NoiseEstimate(0.0, 0.0)
        return NoiseEstimate(self.square / self.weight, self.variance / self.weight)

    @property
    def samples(self) -> float:
        """φ, from 0 to ``NOISIEST``. Where no noise shows it is 0, where noise shows and no gradient the most."""
        if self.variance <= 0:
            return 0.0
        if self.variance >= NOISIEST * self.square:
            return NOISIEST
        return self.variance / self.square
