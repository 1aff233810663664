"""AFS's figure 2: queue length, cluster efficiency and blocking index over time, on two of its traces.

The indices follow the paper's §2.2: QL, the jobs without GPUs; CE, the sum over jobs of their speed-up over one GPU,
divided by the GPUs; BI, the mean over waiting jobs of the time waited over the time left on one GPU. A policy that
records them wraps the one of the experiment. Time waited counts all times without GPUs since submission.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean

import numpy as np

from shoal.core.arrays import Floats
from shoal.core.decision import Decision, Verdicts
from shoal.core.interfaces import Policy
from shoal.core.snapshot import Snapshot
from shoal.core.topology import parse_cluster
from shoal.perf.afs_profiles import AFS_MODELS
from shoal.report.compare import half_width
from shoal.research.repro.afs import CLUSTER, FOLDER, trace
from shoal.research.repro.context import ReproContext
from shoal.research.repro.paired import all_hold
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.table import Cell, Chart, Column, Line, Table, table
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import run

MODERATE, HEAVY = 9, 3
"""Traces by their number in table 3: the paper names these two in figures 7 and 10, whose trends it says are alike."""

POLICIES = ("srtf", "srsf", "max-min", "afs-l")
PAPER_HOURS = {
    MODERATE: dict(zip(POLICIES, (31.1, 32.8, 18.3, 15.2), strict=True)),
    HEAVY: dict(zip(POLICIES, (3.53 * 24, 3.32 * 24, 63.20 * 24, 2.40 * 24), strict=True)),
}
"""Mean completion times of the paper's §2.2, in hours."""

SEEDS = 5
QUICK_JOBS = 250
INDICES = ("QL", "CE", "BI")
_POINTS = 60


@dataclass(slots=True)
class IndexRecorder:
    """A policy that records the three indices after each of its decisions."""

    policy: Policy
    gpus: int
    at: list[float] = field(default_factory=list)
    indices: list[tuple[float, float, float]] = field(default_factory=list)
    _speedups: dict[str, Floats] = field(default_factory=dict)

    def decide(self, snapshot: Snapshot) -> Decision:
        """Decide as the policy does."""
        decision = self.policy.decide(snapshot)
        assert isinstance(decision.verdicts, Verdicts)
        self.at.append(snapshot.now)
        self.indices.append(self._indices(snapshot, np.asarray(decision.verdicts.gpus)))
        return decision

    def _indices(
        self, snapshot: Snapshot, granted: np.ndarray[tuple[int], np.dtype[np.int32]]
    ) -> tuple[float, float, float]:
        columns, pending = snapshot.columns, granted == 0
        running = np.flatnonzero(granted)
        speed = sum(self._speedup(snapshot.specs[i].model or "")[granted[i]] for i in running.tolist())
        waited = snapshot.now - columns.submitted[pending] - columns.run_seconds[pending]
        left = np.maximum(columns.remaining[pending], 1.0)  # one GPU makes one sample per second
        blocking = float((waited / left).mean()) if pending.any() else 0.0
        return float(pending.sum()), float(speed) / self.gpus, blocking

    def _speedup(self, model: str) -> Floats:
        known = self._speedups.get(model)
        if known is None:
            profile = AFS_MODELS[model]
            known = self._speedups[model] = np.array([0.0, *map(profile.speedup, range(1, self.gpus + 1))])
        return known


@dataclass(frozen=True, slots=True)
class SeriesResult:
    """One run: mean completion seconds, time averages of the indices, and their means in equal parts of the run."""

    mean: float
    averages: tuple[float, float, float]
    hours: tuple[float, ...]
    series: tuple[tuple[float, float, float], ...]


def measure_series(folder: Path, number: int, seed: int, policy: str, jobs: int | None = None) -> SeriesResult:
    """Run one policy on one trace and record the indices."""
    cluster = parse_cluster(CLUSTER)
    scenario = Scenario(cluster, policy, placement="any", restart_cost="0")
    recorder = IndexRecorder(scenario.make_policy(), cluster.total_gpus)
    done = run(scenario, trace(folder, number, seed, jobs), policy=recorder)
    at, values = np.array(recorder.at), np.array(recorder.indices)
    seconds = np.diff(at)
    if len(at) < 2 or not seconds.sum():
        raise ValueError("a series needs decisions at two times at least")
    averages = (seconds[:, None] * values[:-1]).sum(axis=0) / seconds.sum()
    edges = np.linspace(at[0], at[-1], _POINTS + 1)
    # The integral of each index up to every decision, read off at the edges.
    total = np.vstack([np.zeros(3), np.cumsum(seconds[:, None] * values[:-1], axis=0)])
    reached = np.array([np.interp(edges, at, total[:, i]) for i in range(3)]).T
    parts = np.diff(reached, axis=0) / np.diff(edges)[:, None]
    hours = tuple((edges[:-1] / 3600.0).tolist())
    return SeriesResult(done.summary["avg_jct"], tuple(averages.tolist()), hours, tuple(map(tuple, parts.tolist())))


Runs = Mapping[str, Sequence[SeriesResult]]
"""Results by policy and seed."""


def series_results(context: ReproContext, number: int) -> Runs:
    """Return the results of all policies on a trace, computed or stored."""
    seeds, jobs = (range(2), QUICK_JOBS) if context.quick else (range(SEEDS), None)
    found: dict[str, list[SeriesResult]] = {}
    for policy in POLICIES:
        for seed in seeds:
            key = {"afs-2": number, "policy": policy, "seed": seed, "limit": jobs}
            label = f"trace {number}, {policy}, seed {seed}"
            row = context.run(key, label, _measured, context.data / FOLDER, number, seed, policy, jobs)
            series = tuple(tuple(point) for point in row["series"])
            one = SeriesResult(row["mean"], tuple(row["averages"]), tuple(row["hours"]), series)
            found.setdefault(policy, []).append(one)
    return found


def _measured(folder: Path, number: int, seed: int, policy: str, jobs: int | None) -> dict[str, object]:
    return asdict(measure_series(folder, number, seed, policy, jobs))


def series_table(number: int, found: Runs) -> Table:
    """Figure 2 for one trace: mean completion times beside the paper's, and the indices averaged over time."""
    theirs = PAPER_HOURS[number]
    ours = {policy: fmean(one.mean for one in runs) / 3600.0 for policy, runs in found.items()}
    rows: list[list[Cell]] = []
    for policy, runs in found.items():
        spread = half_width([one.mean / 3600.0 for one in runs])
        indices = [fmean(one.averages[i] for one in runs) for i in range(3)]
        rows.append([policy, theirs[policy], ours[policy], spread, ours[policy] / theirs[policy] - 1.0, *indices])
    weight = "moderate" if number == MODERATE else "heavy"
    return table(
        f"figure 2, {weight} contention: trace {number}, mean completion time and indices averaged over time",
        [
            "policy",
            Column("paper, h", ".1f"),
            Column("ours, h", ".1f"),
            Column("±", ".1f"),
            Column("difference", "+.0%"),
            Column("QL", ".1f"),
            "CE",
            Column("BI", ".3g"),
        ],
        rows,
        f"shortest first: {_ranked(theirs)}; the lower QL and BI, the shorter the times",
        "models and speeds are assumed, and jobs of the trace are missing (afs-table3): values may not be compared",
        verdict=order_verdict(theirs, ours),
        charts=_charts(weight, found),
    )


def _ranked(times: Mapping[str, float]) -> str:
    return ", ".join(sorted(times, key=lambda policy: times[policy]))


def order_verdict(theirs: Mapping[str, float], ours: Mapping[str, float]) -> str:
    """Return the verdict on the order of each pair of policies that the paper's times put at least 5 % apart."""
    claims = {
        f"{a} is shorter than {b} (ours {ours[a]:.3g} and {ours[b]:.3g} h)": ours[a] < ours[b]
        for a in theirs
        for b in theirs
        if theirs[a] * 1.05 < theirs[b]
    }
    return all_hold(claims)


def _charts(weight: str, found: Runs) -> list[Chart]:
    def line(policy: str, index: int) -> Line:
        one = found[policy][0]
        return Line(policy, tuple(zip(one.hours, (point[index] for point in one.series), strict=True)))

    return [
        Chart(f"figure 2, {weight}: {name}", "hours", name, (), tuple(line(p, i) for p in found), "steps")
        for i, name in enumerate(INDICES)
    ]


def _figure_2(context: ReproContext) -> list[Table]:
    return [series_table(number, series_results(context, number)) for number in (MODERATE, HEAVY)]


REPRODUCTIONS = (
    Reproduction("afs-2", "AFS (NSDI '21)", "queue length, cluster efficiency and blocking index", _figure_2, FOLDER),
)
