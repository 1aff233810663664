"""Benches of the auctions: winners and every hidden payment, exact, at the sizes of a whole cluster."""

from collections.abc import Callable, Sequence
from time import process_time
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from shoal.solve.auction import AuctionOutcome, CountBid, MachineBid

_SEED = 3
_TRIES = 3


def counts(bidders: int, gpus: int) -> dict[str, float]:
    """An auction of so many interchangeable GPUs, with all payments."""
    from shoal.solve.auction import auction_counts

    bids = count_bids(bidders, gpus)
    return _timed(lambda: auction_counts(bids, gpus))


def machines(bidders: int, nodes: int, size: int) -> dict[str, float]:
    """An auction of named machines of so many GPUs each, with all payments."""
    from shoal.solve.auction import auction_machines

    bids = machine_bids(bidders, nodes, size)
    return _timed(lambda: auction_machines(bids, [size] * nodes)) | {"bundles": float(_bundles(bids))}


def _timed(solve: "Callable[[], AuctionOutcome]") -> dict[str, float]:
    seconds = np.inf
    for _ in range(_TRIES):
        begin = process_time()
        found = solve()
        seconds = min(seconds, process_time() - begin)
    return {"seconds": float(seconds), "gap": found.gap, "payers": float((found.kept < 1.0 - 1e-9).sum())}


def _bundles(bids: "Sequence[MachineBid]") -> int:
    return sum(len(bid.bundles) for bid in bids)


def count_bids(bidders: int, gpus: int) -> "list[CountBid]":
    """Apps of unlike lengths, ages and widths; beyond eight GPUs they sit apart and go slower."""
    from shoal.solve.auction import CountBid

    chance = np.random.default_rng(_SEED)
    bids = []
    for _ in range(bidders):
        work, age, slower = chance.lognormal(8, 1.5), chance.uniform(0, 2e4), chance.uniform(1, 1.5)
        units = np.arange(int(chance.integers(1, gpus + 1)) + 1)
        left = np.where(units > 0, work / np.maximum(units, 1), 2 * work) * np.where(units > 8, slower, 1.0)
        bids.append(CountBid(units, -np.log(age + left)))
    return bids


def machine_bids(bidders: int, nodes: int, size: int) -> "list[MachineBid]":
    """Apps that prefer some machines to others: every number of GPUs on each, and thirty bundles of two to four."""
    from shoal.solve.auction import Bundle, MachineBid

    chance = np.random.default_rng(_SEED)
    bids = []
    for _ in range(bidders):
        work, age, most = chance.lognormal(8, 1.5), chance.uniform(0, 1e4), int(chance.integers(1, 17))
        slower, taste = chance.uniform(1.0, 1.6), chance.uniform(1.0, 1.2, nodes)
        bundles: list[Bundle] = [()]
        left = [2 * work]
        for node in range(nodes):
            for gpus in range(1, min(size, most) + 1):
                bundles.append(((node, gpus),))
                left.append(work / gpus * taste[node])
        for _ in range(30):
            some = sorted(chance.choice(nodes, int(chance.integers(2, 5)), replace=False).tolist())
            bundles.append(tuple((node, size) for node in some))
            left.append(work / min(size * len(some), most) * slower * taste[some].max())
        bids.append(MachineBid(tuple(bundles), -np.log(age + np.array(left))))
    return bids
