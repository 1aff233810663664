"""The outcome of an auction with its certificate."""

from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Floats, Int64s


@dataclass(frozen=True, slots=True, eq=False)
class AuctionOutcome:
    """The bundle each bidder won (``chosen``) and the part of it each keeps (``kept``).

    ``objective`` is the logarithm of the product of values; no choice of winners has one above ``bound``.
    ``others_with`` and ``others_without`` are the logarithms of the others' product with the bidder present and, at
    best, without it; ``kept`` is the ratio of the two products. ``gap`` is the largest unproven part of the objective
    and of the optima without a bidder, as a fraction of the product.
    """

    chosen: Int64s
    kept: Floats
    objective: float
    bound: float
    gap: float
    others_with: Floats
    others_without: Floats


def judged(chosen: Int64s, worth: Floats, bound: float, without: Floats, unproven: Floats) -> AuctionOutcome:
    """Return the outcome of an auction in which the bidders win these bundles; ``worth`` is by bidder.

    ``without`` is the best value reached without each bidder, ``unproven`` the bound on it less that value.
    """
    objective = float(worth.sum())
    others = objective - worth
    # A bidder can only take from the others, so ``without`` below ``others`` is rounding.
    best = np.maximum(without, others)
    gap = max(bound - objective, float(unproven.max(initial=0.0)), 0.0)
    return AuctionOutcome(chosen, np.exp(others - best), objective, bound, -float(np.expm1(-gap)), others, best)
