"""What came of an auction, with what proves it."""

from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Floats, Int64s


@dataclass(frozen=True, slots=True, eq=False)
class AuctionOutcome:
    """Which of its bundles each bidder won, and which part of it each keeps.

    ``objective`` is the logarithm of the product of values, summed over the bundles won; ``bound`` is proven: no
    winners have more. ``others_with`` and ``others_without`` are the logarithms of the others' product, with the bidder
    there and, at best, without it; ``kept`` is the ratio of the two products. ``gap`` is the largest of what is
    unproven in the objective and in any of the optima without somebody, as a fraction of the product.
    """

    chosen: Int64s
    kept: Floats
    objective: float
    bound: float
    gap: float
    others_with: Floats
    others_without: Floats


def judged(chosen: Int64s, worth: Floats, bound: float, without: Floats, unproven: Floats) -> AuctionOutcome:
    """The outcome of these choices, worth so much by bidder.

    ``without`` are the best values reached without each bidder, and ``unproven`` how much higher the bound on it is.
    """
    objective = float(worth.sum())
    others = objective - worth
    # Who is there can only take from the others, so rounding alone can put its absence below its presence.
    best = np.maximum(without, others)
    gap = max(bound - objective, float(unproven.max(initial=0.0)), 0.0)
    return AuctionOutcome(chosen, np.exp(others - best), objective, bound, -float(np.expm1(-gap)), others, best)
