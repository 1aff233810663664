"""Benchmarks of Themis's auctions: exact winners and all hidden payments, at the size of a whole cluster."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from shoal.research.bench.timing import best_of

if TYPE_CHECKING:
    from shoal.solve.auction import AuctionOutcome, CountBid, MachineBid

_SEED = 3


def counts(bidders: int, gpus: int) -> dict[str, float]:
    """Time an auction of ``gpus`` interchangeable GPUs, with all payments."""
    from shoal.solve.auction import auction_counts

    bids = count_bids(bidders, gpus)
    return _measure(lambda: auction_counts(bids, gpus))


def machines(bidders: int, nodes: int, size: int) -> dict[str, float]:
    """Time an auction of ``nodes`` named machines with ``size`` GPUs each, with all payments."""
    from shoal.solve.auction import auction_machines

    bids = machine_bids(bidders, nodes, size)
    bundles = sum(len(bid.bundles) for bid in bids)
    return _measure(lambda: auction_machines(bids, [size] * nodes)) | {"bundles": float(bundles)}


def _measure(solve: "Callable[[], AuctionOutcome]") -> dict[str, float]:
    seconds, found = best_of(3, solve)
    return {"seconds": seconds, "gap": found.gap, "payers": float((found.kept < 1.0 - 1e-9).sum())}


def count_bids(bidders: int, gpus: int) -> "list[CountBid]":
    """Return bids of apps with random work, age and width; above eight GPUs an app spans nodes and runs slower."""
    from shoal.solve.auction import CountBid

    rng = np.random.default_rng(_SEED)
    bids = []
    for _ in range(bidders):
        work, age, slower = rng.lognormal(8, 1.5), rng.uniform(0, 2e4), rng.uniform(1, 1.5)
        units = np.arange(int(rng.integers(1, gpus + 1)) + 1)
        left = np.where(units > 0, work / np.maximum(units, 1), 2 * work) * np.where(units > 8, slower, 1.0)
        bids.append(CountBid(units, -np.log(age + left)))
    return bids


def machine_bids(bidders: int, nodes: int, size: int) -> "list[MachineBid]":
    """Return bids of apps that prefer some machines: each GPU count on each, and 30 bundles of 2 to 4 machines."""
    from shoal.solve.auction import Bundle, MachineBid

    rng = np.random.default_rng(_SEED)
    bids = []
    for _ in range(bidders):
        work, age, most = rng.lognormal(8, 1.5), rng.uniform(0, 1e4), int(rng.integers(1, 17))
        slower, taste = rng.uniform(1.0, 1.6), rng.uniform(1.0, 1.2, nodes)
        bundles: list[Bundle] = [()]
        left = [2 * work]
        for node in range(nodes):
            for gpus in range(1, min(size, most) + 1):
                bundles.append(((node, gpus),))
                left.append(work / gpus * taste[node])
        for _ in range(30):
            some = sorted(rng.choice(nodes, int(rng.integers(2, 5)), replace=False).tolist())
            bundles.append(tuple((node, size) for node in some))
            left.append(work / min(size * len(some), most) * slower * taste[some].max())
        bids.append(MachineBid(tuple(bundles), -np.log(age + np.array(left))))
    return bids
