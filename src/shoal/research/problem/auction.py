"""The outcome of Themis's auction for the bids of a problem file, from the arbiter's own rule.

Bids are tables of ρ, by number of GPUs or by the machines they name. Nothing is rounded and the GPUs left over are not
handed out: an app keeps the exact part of the bundle it won.
"""

from time import process_time
from typing import Any

import numpy as np

from shoal.core.errors import InputError, nearest
from shoal.policy.themis.arbiter import auction
from shoal.policy.themis.protocol import Bid, GpuOffer, Level, Row
from shoal.research.problem.problem_file import Problem, ProblemBid


def auction_outcome(problem: Problem) -> dict[str, Any]:
    """GPUs won and kept by app, the payments, the logarithm of the product of 1/ρ, and its gap."""
    _check_bids(problem)
    kind, gpus = next(iter(problem.cluster.items()))
    free = tuple((node, "", size) for node, size in enumerate(problem.node_sizes(kind)))
    machines = {f"{kind}-{node}": node for node, _, _ in free}
    bids = [_bid(number, bid, machines) for number, bid in enumerate(problem.bids)]
    begin = process_time()
    outcome = auction(GpuOffer(0, free, float("inf")), bids)
    seconds = process_time() - begin
    apps = [bid.app for bid in problem.bids]
    won = [bid.rows[row].gpus for bid, row in zip(bids, outcome.chosen.tolist(), strict=True)]
    kept = outcome.kept.tolist()
    shares = [part * count for part, count in zip(kept, won, strict=True)]
    rho = np.exp(outcome.others_with - outcome.objective)
    return {
        "objective": outcome.objective,
        "won": dict(zip(apps, won, strict=True)),
        "kept": dict(zip(apps, kept, strict=True)),
        "shares": dict(zip(apps, shares, strict=True)),
        "levels": dict(zip(apps, rho.tolist(), strict=True)),
        "left": gpus - sum(shares),
        "gap": outcome.gap,
        "seconds": seconds,
        "refused": {},
        "notes": {},
    }


def _bid(app: int, bid: ProblemBid, machines: dict[str, int]) -> Bid:
    rows = [Row(gpus, Level.CLUSTER, rho) for gpus, rho in sorted(bid.rho.items())]
    for row in bid.machines:
        for name in row.gpus:
            if name not in machines:
                raise InputError(f"bids, app {bid.app}, machine", name, nearest(name, machines))
        seats = tuple(sorted((machines[name], gpus) for name, gpus in row.gpus.items()))
        rows.append(Row(sum(row.gpus.values()), Level.CLUSTER, row.rho, seats))
    return Bid(app, tuple(rows), ())


def _check_bids(problem: Problem) -> None:
    if len(problem.cluster) != 1:
        raise InputError("cluster", list(problem.cluster), "bids are for GPUs of one type: name one")
    if not problem.bids:
        raise InputError("bids", problem.bids, "themis needs bids: one for each app, with its ρ by number of GPUs")
    name_machines, seen = any(bid.machines for bid in problem.bids), set[str]()
    for bid in problem.bids:
        where = f"bids, app {bid.app}"
        if bid.app in seen:
            raise InputError("bids, app", bid.app, "is given twice")
        seen.add(bid.app)
        if 0 not in bid.rho:
            raise InputError(f"{where}, rho", list(bid.rho), 'must have the ρ of an app that gets nothing, "0"')
        if name_machines and len(bid.rho) > 1:
            raise InputError(f"{where}, rho", list(bid.rho), "bids name machines: give numbers of GPUs there instead")
