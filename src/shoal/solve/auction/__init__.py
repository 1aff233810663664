"""The partial allocation mechanism: auctions that maximise the product of values, with hidden payments.

Every bidder states the logarithm of its value for some bundles, the first of them empty. The winners maximise Π V
(proportional fairness). Bidder i then gets only the part cᵢ of its bundle,

    cᵢ = Π_{j≠i} Vⱼ(with i) / Π_{j≠i} Vⱼ(without i),   0 < cᵢ ≤ 1;

the rest is its hidden payment. For values homogeneous of degree one it is then best to bid the truth. Both products are
optima: a heuristic would give wrong payments. `counts` has bundles of equal units and is a dynamic program; `machines`
has bundles on named machines and is an integer program; `with_finite_worth` is for bidders whose empty bundle is
worth nothing; `contenders` are the bidders that can matter; `rounding` makes whole units of cᵢ times a bundle.

References: Cole, Gkatzelis and Goel (EC '13); Themis (NSDI '20) §3.3, whose line 8 prints the fraction upside down.
"""

from shoal.solve.auction.bid_table import CountBid, with_finite_worth
from shoal.solve.auction.contenders import contenders
from shoal.solve.auction.counts import auction_counts
from shoal.solve.auction.machines import Bundle, MachineBid, auction_machines
from shoal.solve.auction.outcome import AuctionOutcome
from shoal.solve.auction.rounding import rounded

__all__ = [
    "AuctionOutcome",
    "Bundle",
    "CountBid",
    "MachineBid",
    "auction_counts",
    "auction_machines",
    "contenders",
    "rounded",
    "with_finite_worth",
]
