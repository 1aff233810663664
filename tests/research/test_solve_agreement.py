"""``shoal solve`` and a decision of the policy in the ring agree on random problems: one rule, asked in two ways."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from shoal.core.decision import Verdicts
from shoal.core.events import JobSubmitted
from shoal.core.job import JobSpec
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Node, topology_of
from shoal.engine.state import State
from shoal.perf.catalog import Catalog
from shoal.perf.model import ProfiledModel
from shoal.perf.profile import MeasuredRate, TableProfile
from shoal.policy.gavel.carry import GavelCarry
from shoal.policy.registry import parse_policy
from shoal.policy.shockwave.carry import ShockwaveCarry
from shoal.policy.themis.arbiter import Arbiter, Settlement
from shoal.policy.themis.protocol import AppReport, Bid, GpuOffer
from shoal.research.problem import Problem, solve
from shoal.testing.builders import job, snapshot

KINDS = {"new": 8, "mid": 4, "old": 8}
NODE = 4


def problem_of(fields: dict[str, Any]) -> Problem:
    return msgspec.convert(fields, Problem, str_keys=True)


def in_ring(problem: Problem) -> Snapshot:
    """The jobs of a problem as the ring shows them to a policy, built from the ring's own parts."""
    sizes = {kind: problem.gpus_per_node.get(kind, NODE) for kind in problem.cluster}
    nodes = [Node(f"{k}-{n}", k, sizes[k]) for k, gpus in problem.cluster.items() for n in range(gpus // sizes[k])]
    cluster = topology_of(nodes, problem.prices)
    profiles, specs = {}, []
    for written in sorted(problem.jobs, key=lambda written: written.arrived):
        tables = {k: {written.gpus: rate} for k, rate in written.throughput.items()} | written.by_gpus
        apart = written.unconsolidated
        figures = {
            k: tuple(MeasuredRate(n, rate, apart.get(k, rate)) for n, rate in sorted(by.items()))
            for k, by in tables.items()
        }
        profiles[written.id] = TableProfile({1: figures})
        counts = [n for by in tables.values() for n in by]
        spec = JobSpec(
            written.id, written.arrived, min(counts), written.steps_left, min(counts), max(counts), model=written.id
        )
        due = None if written.slo is None else written.arrived + written.slo
        tenant = written.entity or "default"
        specs.append(replace(spec, weight=written.weight, deadline=due, tenant=tenant))
    shared = {}
    for pair in problem.pairs:
        kind, (first, second) = next(iter(pair.throughput.items()))
        alone = {written.id: written.throughput[kind] for written in problem.jobs if written.id in pair.jobs}
        (a, b), kept = pair.jobs, (first, second)
        shared[(a, 1), (b, 1)], shared[(b, 1), (a, 1)] = kept[0] / alone[a], kept[1] / alone[b]
    sources = {(name, kind): "the test" for name in profiles for kind in problem.cluster}
    state = State(cluster, ProfiledModel(cluster, Catalog(profiles, sources, shared)), 0)
    state.apply_events(problem.now, [JobSubmitted(spec.submitted, spec) for spec in specs])
    return state.freeze()


def drawn(seed: int, *, gangs: bool = True, sharing: bool = False, slower_apart: bool = False) -> dict[str, Any]:
    """A problem with jobs of many weights, widths, arrivals, lengths and deadlines in two entities."""
    chance = np.random.default_rng(seed)
    names = [f"j{i}" for i in range(int(chance.integers(4, 14)))]
    jobs = []
    for name in names:
        gpus = int(chance.choice([1, 1, 2, 3, 4])) if gangs else 1
        speed = float(chance.uniform(1.0, 50.0)) * gpus
        rates = {
            kind: speed * float(chance.uniform(0.2, 1.0)) for kind in KINDS if chance.random() < 0.9 or kind == "new"
        }
        arrived = float(chance.uniform(0.0, 3600.0))
        fields: dict[str, Any] = {
            "id": name,
            "gpus": gpus,
            "throughput": rates,
            "weight": float(chance.choice([0.5, 1.0, 1.0, 2.0, 4.0])),
            "steps_left": speed * float(10 ** chance.uniform(2.5, 5.0)),
            "arrived": arrived,
            "entity": str(chance.choice(["lab", "shop"])),
        }
        if chance.random() < 0.5:
            fields["slo"] = float(10 ** chance.uniform(3.0, 6.0))
        if slower_apart and gpus > 1:
            fields["unconsolidated"] = {kind: rate * float(chance.uniform(0.2, 0.9)) for kind, rate in rates.items()}
        jobs.append(fields)
    pairs = []
    for a, first in enumerate(jobs if sharing else []):
        for second in jobs[a + 1 :]:
            if chance.random() < 0.4:
                kept = chance.uniform(0.52, 0.95, 2).tolist()
                both = first["throughput"].keys() & second["throughput"].keys()
                beside = {
                    k: (kept[0] * first["throughput"][k], kept[1] * second["throughput"][k]) for k in sorted(both)
                }
                pairs.append({"jobs": (first["id"], second["id"]), "throughput": beside})
    return {
        "cluster": KINDS,
        "gpus_per_node": dict.fromkeys(KINDS, NODE),
        "prices": {"new": 2.48, "mid": 1.46, "old": 0.45},
        "entities": {"lab": {"weight": 2.0, "policy": "fifo"}, "shop": {}},
        "jobs": jobs,
        "pairs": pairs,
        "now": 4000.0,
        "formula": "cluster",
    }


def granted(
    moment: Snapshot, carry: object
) -> tuple[np.ndarray[Any, Any], dict[tuple[int, int], np.ndarray[Any, Any]]]:
    """The shares that a decision put in force: alone (jobs × kinds), and by pair of positions (kinds)."""
    assert isinstance(carry, GavelCarry)
    assert not carry.trouble
    cells, kinds = carry.cells, len(moment.cluster.kinds)
    alone = np.zeros((len(moment.columns), kinds))
    together: dict[tuple[int, int], np.ndarray[Any, Any]] = {}
    for first, second, kind, share in zip(cells.first, cells.second, cells.kind, cells.share, strict=True):
        if second < 0:
            alone[first, kind] += share
        else:
            pair = (min(int(first), int(second)), max(int(first), int(second)))
            together.setdefault(pair, np.zeros(kinds))[kind] += share
    return alone, together


RULES = [
    "gavel.max-min",
    "gavel.max-min:water_filling=false",
    "gavel.max-min:aware=false",
    "gavel.makespan",
    "gavel.ftf",
    "gavel.fifo",
    "gavel.sjf",
    "gavel.throughput",
    "gavel.throughput:weighted=true",
    "gavel.throughput:aware=false",
    "gavel.cost",
    "gavel.cost:weighted=true",
    "gavel.cost-slo",
    "gavel.hierarchical",
]
SHARING = [
    f"gavel.{rule}:space_sharing=true"
    for rule in ("max-min", "makespan", "ftf", "fifo", "sjf", "throughput", "cost", "cost-slo", "hierarchical")
]


def check_shares(fields: dict[str, Any], spec: str) -> None:
    problem = problem_of(fields)
    answer, moment = solve(problem, spec), in_ring(problem)
    policy = parse_policy(spec)
    if spec.startswith("gavel.hierarchical"):
        policy = parse_policy("gavel.hierarchical:weights=lab=2,fifo=lab")
    alone, together = granted(moment, policy.decide(moment).carry)
    kinds = moment.cluster.kinds
    written = np.array([[answer["allocation"][name][kind] for kind in kinds] for name in moment.ids])
    assert alone == pytest.approx(written, abs=2e-6)
    place = {name: i for i, name in enumerate(moment.ids)}
    for pair in answer.get("pairs", []):
        a, b = sorted(place[name] for name in pair["jobs"])
        fraction = [pair["fraction"][kind] for kind in kinds]
        assert together.get((a, b), np.zeros(len(kinds))) == pytest.approx(np.array(fraction), abs=2e-6)


@pytest.mark.parametrize("spec", RULES)
def test_time_shares_are_those_the_policy_puts_in_force(spec: str) -> None:
    for seed in range(12):
        check_shares(drawn(seed), spec)


@pytest.mark.parametrize("spec", RULES)
def test_time_shares_agree_where_gangs_are_slower_across_nodes(spec: str) -> None:
    for seed in range(100, 106):
        check_shares(drawn(seed, slower_apart=True), spec)


@pytest.mark.parametrize("spec", SHARING)
def test_time_shares_agree_where_jobs_share_gpus(spec: str) -> None:
    for seed in range(200, 208):
        check_shares(drawn(seed, gangs=False, sharing=True), spec)


def test_finish_time_fairness_weighs() -> None:
    # Five equal jobs on one GPU, weights 4, 1, 1, 1, 1: the first is compared with four fifths and gets half.
    jobs = [{"id": f"j{i}", "throughput": {"gpu": 1.0}, "steps_left": 100.0} for i in range(5)]
    jobs[0]["weight"] = 4.0
    answer = solve(problem_of({"cluster": {"gpu": 1}, "jobs": jobs}), "gavel.ftf")
    assert list(answer["levels"].values()) == pytest.approx([0.5, 0.125, 0.125, 0.125, 0.125])


def elastic(seed: int) -> Problem:
    chance = np.random.default_rng(seed)
    jobs = []
    for i in range(int(chance.integers(3, 9))):
        most, power = int(chance.integers(1, 8)), float(chance.uniform(0.3, 1.0))
        rates = {str(n): float(10 * n**power) for n in range(1, most + 1)}
        steps = float(10 ** chance.uniform(3, 5))
        jobs.append({"id": f"j{i}", "by_gpus": {"gpu": rates}, "steps_left": steps, "arrived": float(i)})
    return problem_of({"cluster": {"gpu": 8}, "gpus_per_node": {"gpu": NODE}, "jobs": jobs, "now": 10.0})


@pytest.mark.parametrize(
    "spec", ["srtf-e", "srsf-e", "max-min", "optimus", "afs-l", "afs-p", "afs-s", "rank", "pollux"]
)
def test_numbers_of_gpus_are_those_of_a_decision(spec: str) -> None:
    for seed in range(6):
        problem = elastic(seed)
        moment = in_ring(problem)
        verdicts = Verdicts.of(moment, parse_policy(spec).decide(moment).verdicts)
        assert solve(problem, spec)["shares"] == dict(zip(moment.ids, verdicts.gpus.tolist(), strict=True))


def test_a_window_is_the_plan_of_a_first_decision() -> None:
    for seed in range(8):
        fields = drawn(seed) | {"window": {"rounds": 20, "seconds": 120.0}}
        problem = problem_of(fields)
        moment = in_ring(problem)
        carry = parse_policy("shockwave").decide(moment).carry
        assert isinstance(carry, ShockwaveCarry)
        if carry.plan is None:  # all jobs fit: nothing is planned
            continue
        rounds = {name: np.flatnonzero(row).tolist() for name, row in zip(moment.ids, carry.plan.runs, strict=True)}
        answer = solve(problem, "shockwave:layout=early")
        assert {name: answer["rounds"][name] for name in rounds} == rounds


@pytest.mark.parametrize("bids", ["count", "machines"])
def test_an_auction_is_the_arbiter_s(bids: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[GpuOffer, list[Bid], Settlement]] = []
    settle: Callable[..., Settlement] = Arbiter.settle

    def watched(arbiter: Arbiter, offer: GpuOffer, made: list[Bid], others: list[AppReport], chance: Any) -> Settlement:
        seen.append((offer, made, settle(arbiter, offer, made, others, chance)))
        return seen[-1][-1]

    monkeypatch.setattr(Arbiter, "settle", watched)
    rows = [job(f"j{i}", 30.0 * i, 1 + i % 3, 2000.0 + 700 * i, app=f"app{i % 4}") for i in range(9)]
    parse_policy(f"themis:f=0.2,bids={bids}").decide(snapshot(rows, "gpu:3x4", now=400.0))
    for offer, made, settlement in seen:
        written = []
        for bid in made:
            rho = {str(row.gpus): row.rho for row in bid.rows if not row.seats}
            machines = [
                {"gpus": {f"gpu-{n}": g for n, g in row.seats}, "rho": row.rho} for row in bid.rows if row.seats
            ]
            written.append({"app": str(bid.app), "rho": rho, "machines": machines})
        file = {"cluster": {"gpu": offer.gpus}, "gpus_per_node": {"gpu": NODE}, "bids": written}
        answer = solve(problem_of(file), "themis")
        won = {str(bid.app): settlement.awards[bid.app].won for bid in made}
        kept = {str(bid.app): settlement.awards[bid.app].kept for bid in made}
        assert (answer["won"], answer["kept"]) == (won, pytest.approx(kept))
    assert seen
