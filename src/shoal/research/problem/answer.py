"""A policy's shares for a written-down problem: fractions of time by job and GPU type, with objective and gap.

Where a gang's throughput differs between one node and several, the shares of a policy that does not ask are taken if
every gang that would lose can be on one node; if not, they are solved again with both to choose from.
"""

from collections.abc import Callable, Mapping
from time import process_time
from typing import Any, TypeAlias

import numpy as np

from shoal.core.arrays import Floats
from shoal.core.errors import InputError
from shoal.policy.pollux.policy import Pollux
from shoal.policy.registry import POLICIES, parse_policy
from shoal.policy.shockwave.policy import Shockwave
from shoal.research.problem.adapted import adapted
from shoal.research.problem.auctioned import auctioned
from shoal.research.problem.decided import decide
from shoal.research.problem.posed import Posed, pose
from shoal.research.problem.windowed import windowed
from shoal.research.problem.written import WrittenProblem
from shoal.solve import consolidation, linear_objectives, prices, ratio_program, space_sharing
from shoal.solve.consolidation import Localities, water_filled
from shoal.solve.prices.paths import FinishTime, Proportional, Tree

Answer: TypeAlias = dict[str, Any]

ELASTIC = ("srtf-e", "srsf-e", "max-min", "optimus", "afs-l", "afs-p", "afs-s", "rank")
"""Policies whose answer is a number of GPUs for each job."""

AUCTION = "themis"
"""The policy whose problem is its bids."""


def solve(problem: WrittenProblem, spec: str) -> Answer:
    """The policy's shares for a problem, with the objective, the gap and the CPU seconds it took."""
    policy = parse_policy(spec)
    name = spec.partition(":")[0]
    if name in ELASTIC:
        return {"policy": spec, **decide(problem, policy)}
    if name == AUCTION:
        return {"policy": spec, **auctioned(problem)}
    if isinstance(policy, Shockwave):
        return {"policy": spec, **windowed(problem, policy, layout_asked="layout=" in spec)}
    if isinstance(policy, Pollux):
        return {"policy": spec, **adapted(problem, policy)}
    solver = _SOLVERS.get(name)
    if solver is None:
        known = [n for n in POLICIES if n in _SOLVERS or n in (*ELASTIC, AUCTION, "pollux", "shockwave")]
        raise InputError("policy", name, f"cannot be solved on a problem file; choose one of {', '.join(known)}")
    posed, refused = pose(problem, aware=bool(getattr(policy, "aware", True)))
    if posed.places is not None and getattr(policy, "space_sharing", False):
        raise InputError("unconsolidated", name, "does not go with space_sharing=true; leave out one of the two")
    begin = process_time()
    found = solver(posed, policy)
    seconds = process_time() - begin
    notes = dict(found.pop("notes", {}))
    return {"policy": spec, **found, "seconds": seconds, "refused": refused, "notes": notes}


def _table(posed: Posed, shares: Floats) -> dict[str, dict[str, float]]:
    kinds = list(posed.problem.cluster)
    return {job.id: dict(zip(kinds, row, strict=True)) for job, row in zip(posed.jobs, shares.tolist(), strict=True)}


def _answer(posed: Posed, shares: Floats, objective: float, gap: float, residual: float, **more: Any) -> Answer:
    levels = (posed.true_speeds * shares).sum(axis=1)
    return {
        "objective": objective,
        "allocation": _table(posed, shares),
        "levels": dict(zip((job.id for job in posed.jobs), levels.tolist(), strict=True)),
        "gap": gap,
        "residual": residual,
        **more,
    }


def _filled(
    posed: Posed,
    filling: prices.Filling,
    local: Callable[[Localities], linear_objectives.TimeShares],
    *,
    inverse: bool = False,
) -> Answer:
    """The answer of a water filling, or where gangs would have to sit apart, of the one that knows of it.

    With ``inverse`` the objective is one over the filling's own.
    """
    if (places := posed.scarce(filling.X)) is not None:
        found = local(places)
        return _local(posed, places, found, 1.0 / found.objective if inverse else found.objective)
    certificate = [dict(zip(posed.problem.cluster, stage.prices.tolist(), strict=True)) for stage in filling.stages]
    objective = 1.0 / filling.objective if inverse else filling.objective
    more = _all_consolidated(posed, filling.X)
    return _answer(posed, filling.X, objective, filling.gap, filling.residual, prices=certificate, **more)


def _timed(
    posed: Posed,
    found: linear_objectives.TimeShares,
    local: Callable[[Localities], linear_objectives.TimeShares],
    notes: Callable[[linear_objectives.TimeShares], Mapping[str, str]] = lambda _: {},
) -> Answer:
    """The answer of a linear program, or where gangs would have to sit apart, of the one that knows of it."""
    if (places := posed.scarce(found.shares)) is not None:
        seated = local(places)
        return {**_local(posed, places, seated, seated.objective), "notes": notes(seated)}
    more = {"status": found.status, "notes": notes(found), **_all_consolidated(posed, found.shares)}
    return _answer(posed, found.shares, found.objective, found.gap, found.residual, **more)


def _local(posed: Posed, places: Localities, found: linear_objectives.TimeShares, objective: float) -> Answer:
    answer = _answer(posed, found.shares, objective, found.gap, found.residual, status=found.status)
    levels = dict(zip((job.id for job in posed.jobs), places.throughput(found).tolist(), strict=True))
    return {**answer, "levels": levels, "consolidated": _sensitive(posed, found.consolidated)}


def _all_consolidated(posed: Posed, shares: Floats) -> Answer:
    """Where it makes a difference, all of the time is on one node."""
    if posed.places is None:
        return {}
    return {"consolidated": _sensitive(posed, np.where(posed.places.sensitive, shares, 0.0))}


def _sensitive(posed: Posed, consolidated: Floats) -> dict[str, dict[str, float]]:
    """By job that is slower apart: how much of its time is on one node, by type."""
    slower = {job.id for job in posed.jobs if job.unconsolidated}
    return {job: row for job, row in _table(posed, consolidated).items() if job in slower}


def _shared(posed: Posed, found: space_sharing.SharedShares, notes: Mapping[str, str] | None = None) -> Answer:
    kinds, names = list(posed.problem.cluster), [job.id for job in posed.jobs]
    together = [
        {"jobs": [names[a], names[b]], "fraction": dict(zip(kinds, row, strict=True))}
        for (a, b), row in zip(found.pairs.tolist(), found.together.tolist(), strict=True)
    ]
    answer = _answer(posed, found.alone, found.objective, found.gap, found.residual, status=found.status)
    levels = dict(zip(names, found.throughput.tolist(), strict=True))
    return {**answer, "levels": levels, "pairs": together, "notes": notes or {}}


def _max_min(posed: Posed, policy: Any) -> Answer:
    demands, filling = posed.demands(), bool(policy.water_filling)
    if policy.space_sharing:
        return _shared(posed, space_sharing.shared_max_min(posed.crowd(), demands, water_filling=filling))
    found = prices.max_min(posed.speeds, posed.gangs, posed.capacity, demands, water_filling=filling)
    return _filled(posed, found, lambda places: water_filled(places, Proportional(demands), water_filling=filling))


def _makespan(posed: Posed, policy: Any) -> Answer:
    steps = posed.column("steps_left")
    if policy.space_sharing:
        return _shared(posed, space_sharing.shared_makespan(posed.crowd(), steps))
    found = prices.makespan(posed.speeds, posed.gangs, posed.capacity, steps)
    return _filled(posed, found, lambda places: water_filled(places, Proportional(steps)), inverse=True)


def _ftf(posed: Posed, policy: Any) -> Answer:
    del policy
    steps = posed.column("steps_left")
    elapsed = np.array([job.elapsed for job in posed.jobs])
    isolated = np.array([job.isolated_elapsed for job in posed.jobs])
    alone = isolated + steps / prices.isolated_speed(posed.speeds, posed.gangs, posed.capacity)
    found = prices.finish_time_fairness(posed.speeds, posed.gangs, posed.capacity, steps, elapsed, alone)
    path = FinishTime(steps, elapsed, alone)
    return _filled(posed, found, lambda places: water_filled(places, path), inverse=True)


def _fifo(posed: Posed, policy: Any) -> Answer:
    del policy
    order = np.argsort([job.arrived for job in posed.jobs], kind="stable")
    found = linear_objectives.fifo(posed.speeds, posed.gangs, posed.capacity, order)
    return _timed(posed, found, lambda places: consolidation.first_come(places, order))


def _sjf(posed: Posed, policy: Any) -> Answer:
    del policy
    steps = posed.column("steps_left")
    found = linear_objectives.shortest_job_first(posed.speeds, posed.gangs, posed.capacity, steps)
    return _timed(posed, found, lambda places: consolidation.shortest_first(places, steps))


def _throughput(posed: Posed, policy: Any) -> Answer:
    if policy.space_sharing:
        return _shared(posed, space_sharing.shared_throughput(posed.crowd(), posed.weights))
    found = linear_objectives.maximise_throughput(posed.speeds, posed.gangs, posed.capacity, posed.weights)
    return _timed(posed, found, lambda places: consolidation.most_throughput(places, posed.weights))


def _cost(posed: Posed, policy: Any) -> Answer:
    return _cheapest(posed, policy, None, {})


def _cost_slo(posed: Posed, policy: Any) -> Answer:
    return _cheapest(posed, policy, *posed.floors())


def _cheapest(posed: Posed, policy: Any, floors: Floats | None, notes: Mapping[str, str]) -> Answer:
    costs = posed.costs()
    if policy.space_sharing:
        shared = space_sharing.shared_cheapest(posed.crowd(), costs, posed.weights, floors)
        return _shared(posed, shared, {**notes, **_short(posed, shared)})
    found = ratio_program.cheapest(posed.speeds, posed.gangs, posed.capacity, costs, posed.weights, floors)
    return _timed(
        posed,
        found,
        lambda places: consolidation.most_for_the_money(places, costs, posed.weights, floors),
        lambda answer: {**notes, **_short(posed, answer)},
    )


def _short(posed: Posed, found: linear_objectives.TimeShares | space_sharing.SharedShares) -> dict[str, str]:
    """Which SLOs are not kept, and by how much."""
    notes = {}
    for row in np.flatnonzero((found.shortfall > 1e-9) | found.unattainable).tolist():
        why = "cannot be met even alone" if found.unattainable[row] else "cannot be met together with the others'"
        notes[posed.jobs[row].id] = f"its SLO {why}: {found.shortfall[row]:.6g} steps/s short"
    return notes


def _hierarchical(posed: Posed, policy: Any) -> Answer:
    del policy
    equal, tree = prices.equal_share_speed(posed.speeds, posed.capacity) / posed.gangs, posed.tree()
    found = prices.hierarchical(posed.speeds / equal[:, None], posed.gangs, posed.capacity, tree, posed.weights)
    path = Tree(tree, posed.weights)
    return _filled(posed, found, lambda places: water_filled(places.per(equal), path))


_SOLVERS: dict[str, Callable[[Posed, Any], Answer]] = {
    "gavel.max-min": _max_min,
    "gavel.makespan": _makespan,
    "gavel.ftf": _ftf,
    "gavel.fifo": _fifo,
    "gavel.sjf": _sjf,
    "gavel.throughput": _throughput,
    "gavel.cost": _cost,
    "gavel.cost-slo": _cost_slo,
    "gavel.hierarchical": _hierarchical,
}
