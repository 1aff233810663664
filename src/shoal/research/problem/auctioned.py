"""The outcome of an auction that is written down: who wins which bundle, what each keeps of it, and what is left.

Bids are tables of ρ, by number of GPUs or by the machines they name. Nothing is rounded and nothing handed out at
random: what an app keeps is the exact part of its bundle.
"""

from time import process_time
from typing import Any

import numpy as np

from shoal.core.errors import InputError, nearest
from shoal.research.problem.written import WrittenBid, WrittenProblem, check
from shoal.solve.auction import Bundle, CountBid, MachineBid, auction_counts, auction_machines


def auctioned(problem: WrittenProblem) -> dict[str, Any]:
    """GPUs won and kept by app, the payments, the logarithm of the product of 1/ρ, and how exact it is."""
    check(problem)
    _check(problem)
    kind, gpus = next(iter(problem.cluster.items()))
    size = problem.gpus_per_node.get(kind, max(gpus, 1))
    free = [size] * (gpus // size) + [gpus % size] * (gpus % size > 0)
    named = any(bid.machines for bid in problem.bids)
    begin = process_time()
    if named:
        tables = [_named(bid, kind, len(free)) for bid in problem.bids]
        outcome = auction_machines(tables, free)
        won = [sum(n for _, n in t.bundles[o]) for t, o in zip(tables, outcome.chosen.tolist(), strict=True)]
    else:
        counts = [_counted(bid) for bid in problem.bids]
        outcome = auction_counts(counts, gpus)
        won = [int(bid.units[o]) for bid, o in zip(counts, outcome.chosen.tolist(), strict=True)]
    apps = [bid.app for bid in problem.bids]
    kept = outcome.kept.tolist()
    shares = [c * n for c, n in zip(kept, won, strict=True)]
    values = outcome.objective - outcome.others_with
    return {
        "objective": outcome.objective,
        "won": dict(zip(apps, won, strict=True)),
        "kept": dict(zip(apps, kept, strict=True)),
        "shares": dict(zip(apps, shares, strict=True)),
        "levels": dict(zip(apps, np.exp(-values).tolist(), strict=True)),
        "left": gpus - sum(shares),
        "gap": outcome.gap,
        "seconds": process_time() - begin,
        "refused": {},
        "notes": {},
    }


def _counted(bid: WrittenBid) -> CountBid:
    units = sorted(bid.rho)
    return CountBid(np.array(units, dtype=np.int64), -np.log([bid.rho[n] for n in units]))


def _named(bid: WrittenBid, kind: str, count: int) -> MachineBid:
    at = {f"{kind}-{m}": m for m in range(count)}
    bundles: list[Bundle] = [()]
    for row in bid.machines:
        for name in row.gpus:
            if name not in at:
                raise InputError(f"bids, app {bid.app}, machine", name, nearest(name, at))
        bundles.append(tuple(sorted((at[name], gpus) for name, gpus in row.gpus.items())))
    return MachineBid(tuple(bundles), -np.log([bid.rho[0], *(row.rho for row in bid.machines)]))


def _check(problem: WrittenProblem) -> None:
    if len(problem.cluster) != 1:
        raise InputError("cluster", list(problem.cluster), "bids are for GPUs of one type: name one")
    if not problem.bids:
        raise InputError("bids", problem.bids, "themis needs bids: one for each app, with its ρ by number of GPUs")
    named, seen = any(bid.machines for bid in problem.bids), set[str]()
    for bid in problem.bids:
        where = f"bids, app {bid.app}"
        if bid.app in seen:
            raise InputError("bids, app", bid.app, "is given twice")
        seen.add(bid.app)
        if 0 not in bid.rho:
            raise InputError(f"{where}, rho", list(bid.rho), 'must have the ρ of an app that gets nothing, "0"')
        if named and len(bid.rho) > 1:
            raise InputError(f"{where}, rho", list(bid.rho), "bids name machines: give numbers of GPUs there instead")
        for rho in (*bid.rho.values(), *(row.rho for row in bid.machines)):
            if not 0 < rho < float("inf"):
                raise InputError(f"{where}, rho", rho, "must be a number above 0")
        for gpus in (*bid.rho, *(n - 1 for row in bid.machines for n in row.gpus.values())):
            if gpus < 0:
                raise InputError(f"{where}, GPUs", gpus, "must be at least 0, and at least 1 on a machine")
