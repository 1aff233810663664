"""Checks of the contract of a policy, for Shoal's own policies and for users'.

``check_policy(make_policy)`` runs all of them. Each is a function in ``CHECKS`` that takes a factory of the policy and
raises ``AssertionError`` with the job, the time and the numbers. The clusters and workloads are small and the same
every time::

    from shoal.testing.conformance import check_policy

    def test_my_policy_conforms() -> None:
        check_policy(lambda: MyPolicy())
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from math import isnan
from typing import Any, TypeAlias

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.core.columns import Columns
from shoal.core.commands import Start
from shoal.core.decision import Decision, Grant, Refusal, Verdicts
from shoal.core.interfaces import Policy
from shoal.core.lifecycle import JobState
from shoal.core.quota import Quota
from shoal.core.reasons import IN_WORDS
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Node, Topology
from shoal.sim.faults import Faults, JobFault, NodeFault, NodeJoin
from shoal.testing import strategies
from shoal.testing.builders import Cycle, SimulationLog, job, simulate, snapshot
from shoal.workload.schema import Job

PolicyMaker: TypeAlias = Callable[[], Policy]

MOST_CYCLES = 20_000
"""Limit of decisions in a run: far more than any sensible policy needs in this suite."""

_PROBED = 6
"""Cycles per run at which the decision is checked again by itself."""


def check_policy(make_policy: PolicyMaker) -> None:
    """Run every check; the first broken promise raises ``AssertionError``."""
    for check in CHECKS.values():
        check(make_policy)


def _require(kept: bool, promise: str, moment: Snapshot | None = None) -> None:
    if not kept:
        raise AssertionError(promise if moment is None else f"at t = {moment.now:g} {promise}")


# ── one decision ──────────────────────────────────────────────────────────────────────────────────────────────────


def check_decision(policy: Policy, moment: Snapshot) -> Decision:
    """Check that one decision is complete, within capacity, explained and pure, with and without ``carry``."""
    before = _fingerprint(moment)
    decision = policy.decide(moment)
    check_answer(moment, decision)
    again = policy.decide(moment)
    _require(_fingerprint(moment) == before, "the policy wrote to the snapshot", moment)
    digests = [Verdicts.of(moment, d.verdicts).digest() for d in (decision, again)]
    _require(digests[0] == digests[1], "the same snapshot got two different decisions", moment)
    _require(decision.review_at == again.review_at, "the same snapshot got two different times of review", moment)
    _require(same(decision.carry, again.carry), "the same snapshot got two different carries", moment)
    fresh = replace(moment, carry=None)
    check_answer(fresh, policy.decide(fresh))
    return decision


def check_answer(moment: Snapshot, decision: Decision) -> None:
    """Check for a verdict for every live job, whole gangs, kinds within capacity, usable reasons and a later review."""
    later = not isnan(decision.review_at) and decision.review_at > moment.now
    _require(later, f"the review at {decision.review_at:g} is not later", moment)
    names = set(decision.verdicts)
    _require(names == set(moment.ids), f"verdicts for {sorted(names)}, live are {sorted(moment.ids)}", moment)
    verdicts = Verdicts.of(moment, decision.verdicts)
    check_gangs(moment, verdicts)
    check_kinds(moment, verdicts)
    check_reasons(moment, verdicts)


def check_gangs(moment: Snapshot, verdicts: Verdicts) -> None:
    """Check that a grant is 0 or between the job's fewest and most GPUs, and that sharing is mutual."""
    for i, spec in enumerate(moment.specs):
        gpus = int(verdicts.gpus[i])
        whole = gpus == 0 or spec.min_gpus <= gpus <= spec.max_gpus
        _require(whole, f"{spec.id} got {gpus} GPUs; it runs on {spec.min_gpus} to {spec.max_gpus}", moment)
        partner = int(verdicts.partners[i]) if verdicts.partners is not None and gpus else -1
        if partner >= 0 and verdicts.partners is not None:
            mutual = verdicts.partners[partner] == i and verdicts.gpus[partner] == gpus
            other = moment.ids[partner]
            _require(mutual, f"{spec.id} shares with {other}, but not {other} with it", moment)


def check_kinds(moment: Snapshot, verdicts: Verdicts) -> None:
    """Check that grants of each kind, and in total, are within the GPUs up; those that two jobs share count once."""
    cluster = moment.cluster
    used = [0] * len(cluster.kinds)
    anywhere = 0
    for i, gpus in enumerate(verdicts.gpus.tolist()):
        partner = int(verdicts.partners[i]) if verdicts.partners is not None else -1
        if not gpus or 0 <= partner < i:
            continue
        kind = int(verdicts.kinds[i]) if verdicts.kinds is not None else -1
        if kind >= 0:
            used[kind] += gpus
            runs = bool(moment.columns.speeds[i, kind] > 0) or moment.specs[i].elastic
            _require(runs, f"{moment.ids[i]} got {cluster.kinds[kind]}, on which it cannot run", moment)
        else:
            anywhere += gpus
    for name, granted, there in zip(cluster.kinds, used, cluster.capacity, strict=True):
        _require(granted <= there, f"{granted} GPUs of {name} granted, {there} are up", moment)
    total = sum(used) + anywhere
    _require(total <= cluster.total_gpus, f"{total} GPUs granted, {cluster.total_gpus} are up", moment)


def check_reasons(moment: Snapshot, verdicts: Verdicts) -> None:
    """Check that every reason makes a sentence, and that grants and refusals have reasons of their own sort."""
    for i, name in enumerate(moment.ids):
        verdict = verdicts.at(i)
        try:
            sentence = verdict.reason.sentence()
        except (IndexError, KeyError, ValueError, TypeError) as error:
            raise AssertionError(
                f"at t = {moment.now:g} {name}: its reason {verdict.reason} makes no sentence: {error}"
            ) from error
        _require(bool(sentence.strip()), f"{name} has an empty reason", moment)
        _require("nan" not in sentence.split(), f"{name} has NaN in its reason {sentence!r}", moment)
        template = verdict.reason.template
        if template != IN_WORDS:
            _require(template.refuses == isinstance(verdict, Refusal), f"{name}: {verdict} says {sentence!r}", moment)


def check_seats(moment: Snapshot) -> None:
    """Check that seats taken and free GPUs add up to a node's GPUs, or to 0 if it is down."""
    taken = [moment.ending.get(node, 0) for node in range(len(moment.cluster.nodes))]
    for i in range(len(moment.columns)):
        placement = moment.placement(i)
        partner = moment.position_of(int(moment.columns.partner[i])) if moment.columns.partner[i] >= 0 else -1
        if placement is None or (0 <= partner < i and moment.placement(partner) == placement):
            continue
        for node, gpus in placement.seats:
            taken[node] += gpus
    for there, held, free in zip(moment.cluster.nodes, taken, moment.free_gpus.node_free, strict=True):
        up = there.gpus * (moment.cluster.node_index[there.name] not in moment.cluster.down)
        _require(held + free == up, f"{held} GPUs of {there.name} are taken and {free} free of {up}", moment)


def same(a: object, b: object) -> bool:
    """Return whether two values of ``carry`` are equal, including arrays inside them."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(map(same, a, b))
    if is_dataclass(a) and is_dataclass(b):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    return bool(a == b)


def arrays(moment: Snapshot) -> dict[str, np.ndarray[Any, Any]]:
    """Return every array a policy can reach through a snapshot, by name."""
    names = [n for n in dir(Columns) if not n.startswith("_")]
    found = {name: getattr(moment.columns, name) for name in names}
    return {**{n: v for n, v in found.items() if isinstance(v, np.ndarray)}, "tenant_service": moment.tenant_service}


def _fingerprint(moment: Snapshot) -> tuple[object, ...]:
    reachable = arrays(moment)
    for name, array in reachable.items():
        _require(not array.flags.writeable, f"the snapshot's column {name} can be written")
    columns = tuple((name, array.tobytes()) for name, array in reachable.items())
    return (columns, moment.free_gpus, moment.cluster, moment.now, moment.seed, moment.cycle, _copied(moment.carry))


def _copied(carry: object) -> object:
    if isinstance(carry, np.ndarray):
        return carry.tobytes()
    if isinstance(carry, Mapping):
        return {key: _copied(value) for key, value in carry.items()}
    if isinstance(carry, tuple | list):
        return [_copied(value) for value in carry]
    if is_dataclass(carry):
        return [_copied(getattr(carry, f.name)) for f in fields(carry)]
    return repr(carry)


# ── whole runs ────────────────────────────────────────────────────────────────────────────────────────────────────


def checked_run(make_policy: PolicyMaker, jobs: Iterable[Job], cluster: str | Topology, **more: Any) -> SimulationLog:
    """Simulate, check every cycle, and repeat some of the decisions."""
    policy = make_policy()

    def watch(cycle: Cycle) -> None:
        moment, judgement = cycle.snapshot, cycle.judgement
        _require(moment.cycle < MOST_CYCLES, f"{MOST_CYCLES} decisions and still not done, t = {moment.now:g}")
        check_seats(moment)
        check_answer(moment, judgement.decision)
        check_gangs(moment, judgement.verdicts)
        check_reasons(moment, judgement.verdicts)

    run = simulate(policy, jobs, cluster, watch=watch, **more)
    check_seats(run.state.freeze())
    for cycle in run.cycles[:: max(1, len(run.cycles) // _PROBED)]:
        check_decision(policy, cycle.snapshot)
    return run


def _all_complete(run: SimulationLog, awaited: Iterable[Job]) -> None:
    for row in awaited:
        if row.id not in run.completed:
            last = run.story(row.id)[-1:]
            raise AssertionError(f"{row.id} could run but never completed; {row}; last reason {last}")


def check_any_world(make_policy: PolicyMaker, examples: int = 40) -> None:
    """Check that in any small world, with faults, every promise holds at all times and every job completes."""

    @settings(
        max_examples=examples, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        cluster, rows = data.draw(strategies.worlds(most_jobs=8))
        run = checked_run(
            make_policy,
            rows,
            cluster,
            faults=data.draw(strategies.faults(cluster, rows)),
            placement=data.draw(st.sampled_from(["packed", "any", "rack", "network"])),
            restart_cost=data.draw(st.sampled_from([0.0, 5.0])),
            knowledge=data.draw(st.sampled_from(["profiled", "oracle", "online"])),
        )
        _all_complete(run, rows)

    holds()


def check_empty_queue(make_policy: PolicyMaker) -> None:
    """Without live jobs there are no verdicts and no errors."""
    for cluster in ("gpu:2x4", "v100:1x4,k80:2x2"):
        decision = check_decision(make_policy(), snapshot([], cluster))
        _require(len(decision.verdicts) == 0, "verdicts were given though no job is live")


def check_empty_cluster(make_policy: PolicyMaker) -> None:
    """With every node down every job is refused; when the nodes are back every job runs."""
    rows = [job("one", 0, 1, 50), job("four", 5, 4, 100), job("stretches", 5, 2, 80, min_gpus=1, max_gpus=8)]
    for cluster, nodes in (("gpu:2x4", 2), ("v100:1x4,k80:2x2", 3)):
        decision = check_decision(make_policy(), snapshot(rows, cluster, down=range(nodes)))
        granted = [name for name, verdict in decision.verdicts.items() if isinstance(verdict, Grant)]
        _require(not granted, f"{granted} got GPUs on a cluster that is down")
        faults = Faults(script=tuple(NodeFault(20.0, n, 400.0) for n in range(nodes)), checkpoint_every=10.0)
        _all_complete(checked_run(make_policy, rows, cluster, faults=faults), rows)


def check_too_large(make_policy: PolicyMaker) -> None:
    """A job larger than the cluster gets a reason with the numbers, and does not delay others."""
    big = job("big", 0, 9, 100)
    others = [job("a", 0, 4, 100), job("b", 1, 8, 50), job("c", 2, 1, 70)]
    run = checked_run(make_policy, [big, *others], "gpu:2x4", until=50_000.0)
    _all_complete(run, others)
    _require("big" not in run.started, "a gang of 9 was started on 8 GPUs")
    for cycle in run.cycles:
        sentence = cycle.sentence("big")
        _require(
            "9" in sentence and "8" in sentence,
            f"the reason of a gang of 9 on 8 GPUs lacks these numbers: {sentence!r}",
        )


def check_no_starvation(make_policy: PolicyMaker) -> None:
    """Wide and long jobs complete among a finite stream of small ones, with ties and equal jobs."""
    rows = [job("wide", 0, 8, 200), job("long", 0, 2, 2000)]
    rows += [job(f"small-{i}", 20.0 * i, 1 + i % 3, 60) for i in range(20)]
    rows += [job(f"twin-{i}", 100, 4, 100) for i in range(4)]
    _all_complete(checked_run(make_policy, rows, "gpu:2x4"), rows)


def check_lost_node(make_policy: PolicyMaker) -> None:
    """After a node is lost and returned, no job was on it meanwhile, and every job completes."""
    rows = [job(f"j{i}", 10.0 * i, 1 + i % 4, 150, tenant=f"t{i % 2}") for i in range(8)]
    faults = Faults(script=(NodeFault(60.0, 0, 300.0), NodeFault(200.0, 1, 30.0)), checkpoint_every=20.0)
    _all_complete(checked_run(make_policy, rows, "gpu:2x4", faults=faults), rows)


def check_joined_node(make_policy: PolicyMaker) -> None:
    """A node that joins, also one of a new kind or a larger one, is used, and a job that was too wide runs."""
    rows = [job("wide", 0, 6, 100), *(job(f"j{i}", 10.0 * i, 1 + i % 4, 200, tenant=f"t{i % 2}") for i in range(6))]
    script = (NodeJoin(40.0, Node("later", "gpu", 8)), NodeJoin(90.0, Node("other", "v100", 2)), NodeFault(200, 2, 50))
    run = checked_run(make_policy, rows, "gpu:1x4", faults=Faults(script=script, checkpoint_every=20.0))
    _all_complete(run, rows)
    held = {node for _, command in run.commands if isinstance(command, Start) for node in command.placement.nodes}
    _require(1 in held, "a node that joined was never used")


def check_crash(make_policy: PolicyMaker) -> None:
    """A crashed job gets GPUs again; one that keeps crashing fails, and others still run."""
    rows = [job("falls", 0, 2, 300), job("stands", 0, 4, 300)]
    once = checked_run(make_policy, rows, "gpu:2x4", faults=Faults(script=(JobFault(50.0, 0),)))
    _all_complete(once, rows)
    often = tuple(JobFault(50.0 + 10.0 * i, 0) for i in range(400))
    _all_complete(checked_run(make_policy, rows, "gpu:2x4", faults=Faults(script=often)), rows[1:])


def check_replay(make_policy: PolicyMaker) -> None:
    """Two runs with the same seed write the same journal, byte for byte."""
    rows = [job(f"j{i}", 15.0 * i, 1 + i % 4, 90 + 7 * i, min_gpus=1, max_gpus=4 + i % 4) for i in range(10)]
    faults = Faults(script=(NodeFault(77.0, 1, 50.0), JobFault(40.0, 0)), checkpoint_every=10.0)
    for cluster, noise in (("gpu:3x4", 0.0), ("v100:1x4,k80:2x4", 0.3)):
        first, second = (
            simulate(make_policy(), rows, cluster, faults=faults, seed=7, noise=noise, restart_cost=3.0)
            for _ in range(2)
        )
        _require(
            first.journal.records == second.journal.records, f"two equal runs on {cluster} wrote different journals"
        )


def check_long_wait(make_policy: PolicyMaker) -> None:
    """A snapshot from another policy's run, late and with much history, gets a valid decision."""
    rows = [job(f"j{i}", 5.0 * i, 1 + i % 5, 5000, weight=1.0 + i % 2) for i in range(12)]
    past = {f"j{i}": 100.0 * i for i in range(3, 9)}
    moment = snapshot(rows, "gpu:3x4", held={"j0": 1, "j1": 2, "j3": 4}, ran=past, now=1e6)
    check_decision(make_policy(), moment)


def check_quotas(make_policy: PolicyMaker) -> None:
    """No decision exceeds a tenant's most GPUs, and a tenant with jobs for it has its guarantee after one decision."""
    quotas = {"greedy": Quota(gpus=5), "late": Quota(guaranteed=3), "both": Quota(gpus=2, guaranteed=2)}
    rows = [job(f"g{i}", i, 1 + i % 3, 300, tenant="greedy", min_gpus=1, max_gpus=4) for i in range(6)]
    rows += [job(f"f{i}", i, 2, 400, tenant="free") for i in range(5)]
    rows += [job(f"l{i}", 150.0 + i, 1, 200, tenant="late") for i in range(4)]
    rows += [job(f"b{i}", 200.0, 1, 200, tenant="both") for i in range(3)]

    def watch(cycle: Cycle) -> None:
        moment, verdicts = cycle.snapshot, cycle.judgement.verdicts
        check_seats(moment)
        check_gangs(moment, verdicts)
        check_kinds(moment, verdicts)
        check_reasons(moment, verdicts)
        for tenant, quota in quotas.items():
            own = [i for i, spec in enumerate(moment.specs) if spec.tenant == tenant]
            granted = int(verdicts.gpus[own].sum())
            most = quota.gpus
            _require(most is None or granted <= most, f"{tenant} got {granted} GPUs of at most {most}", moment)
            stopping = sum(moment.columns.state[i] == JobState.STOPPING for i in own)
            due = min(quota.guaranteed, len(own) - stopping) if tenant != "greedy" else 0
            _require(granted >= due, f"{tenant} got {granted} GPUs of the {due} guaranteed and asked for", moment)

    for cluster in ("gpu:2x4", "v100:1x4,k80:2x2"):
        run = simulate(make_policy(), rows, cluster, quotas=quotas, watch=watch, until=50_000.0)
        _all_complete(run, rows)


def check_unsaved_work(make_policy: PolicyMaker) -> None:
    """No job is stopped or moved whose stop would lose work, wide jobs are not passed for ever, and every job ends."""
    rows = [job(f"script-{i}", 10.0 * i, 1 + i % 2, 150 + 40 * i, preemptible="auto") for i in range(5)]
    rows += [job("wide", 30, 4, 200, preemptible="auto"), job("kept", 0, 1, 400, preemptible="no")]
    rows += [job(f"saves-{i}", 20.0 * i, 1, 300, preemptible="auto", save_every=60.0) for i in range(3)]
    rows += [job(f"warned-{i}", 15.0 * i, 2, 250, min_gpus=1, max_gpus=4) for i in range(3)]

    def watch(cycle: Cycle) -> None:
        moment, verdicts = cycle.snapshot, cycle.judgement.verdicts
        _require(moment.cycle < MOST_CYCLES, f"{MOST_CYCLES} decisions and still not done, t = {moment.now:g}")
        check_seats(moment)
        check_gangs(moment, verdicts)
        check_kinds(moment, verdicts)
        check_reasons(moment, verdicts)
        moved = {command.job for command in cycle.judgement.commands}
        for i in np.flatnonzero(moment.unstoppable).tolist():
            lost = f"{moment.ids[i]} lost its GPUs and {moment.columns.unsaved[i]:g} s of run"
            _require(int(moment.columns.rows[i]) not in moved and verdicts.gpus[i] > 0, lost, moment)

    for cluster in ("gpu:2x2", "v100:1x4,k80:2x2"):
        run = simulate(make_policy(), rows, cluster, watch=watch, most_lost=90.0, until=50_000.0)
        _all_complete(run, rows)


CHECKS: dict[str, Callable[[PolicyMaker], None]] = {
    "decides on an empty queue": check_empty_queue,
    "refuses everyone on an empty cluster and resumes": check_empty_cluster,
    "tells a job larger than the cluster its numbers": check_too_large,
    "starves no job": check_no_starvation,
    "survives a lost node": check_lost_node,
    "uses a node that joins": check_joined_node,
    "survives crashes": check_crash,
    "writes the same journal twice": check_replay,
    "decides on another policy's snapshot": check_long_wait,
    "keeps to quotas of tenants": check_quotas,
    "loses no work that is not saved": check_unsaved_work,
    "keeps every promise in any small world": check_any_world,
}
"""Every check by the promise it tests, the cheap ones first."""
