"""The benchmark table: each benchmark runs in its own process and is measured in CPU seconds and peak memory.

Benchmarks of a live cluster and of the trainer are measured in wall-clock seconds.
"""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from shoal.core.decision import Decision, Grant, Refusal, Verdict
from shoal.core.errors import InputError, nearest
from shoal.core.snapshot import Snapshot
from shoal.core.topology import parse_cluster
from shoal.policy.registry import POLICIES
from shoal.research.bench import (
    advise,
    auction,
    cells,
    elastic,
    fold,
    goodput,
    job_life,
    live,
    live_lists,
    live_scale,
    scale,
    shockwave,
    solve,
    trainer,
)
from shoal.research.bench.timing import cycle_seconds
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import run
from shoal.workload.files import read_workload
from shoal.workload.generators.registry import generate
from shoal.workload.schema import Job

PHILLY = Path("traces/philly_pollux_82247.csv.gz")

_TRAINER_NEEDS = ("torch", "shoal.research.trials")
"""The wheel does not contain the trial rigs: these benchmarks run from a checkout."""


@dataclass(frozen=True, slots=True)
class Bench:
    """A benchmark: a line on its subject, its budgets, and the data file and modules it needs."""

    name: str
    what: str
    budget_seconds: float
    measure: Callable[[Path], dict[str, float]]
    budget_mb: float | None = None
    data: Path | None = None
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a benchmark; ``seconds`` is None if its data or a module it needs is missing."""

    name: str
    what: str
    seconds: float | None
    budget_seconds: float
    peak_mb: float | None
    budget_mb: float | None
    more: dict[str, float]

    @property
    def met(self) -> bool | None:
        """Whether the result is within its budgets; None without a result."""
        if self.seconds is None or self.peak_mb is None:
            return None
        return self.seconds <= self.budget_seconds and (self.budget_mb is None or self.peak_mb <= self.budget_mb)


@dataclass(frozen=True, slots=True)
class DictPolicy:
    """First come, first served, written in the simplest way: a loop over the jobs that fills a dict."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """Grant the gangs that fit: running jobs first, then in order of arrival."""
        free = snapshot.cluster.total_gpus
        verdicts: dict[str, Verdict] = {}
        for job in sorted(snapshot.jobs.values(), key=lambda job: job.held == 0):
            if job.gpus <= free:
                free -= job.gpus
                verdicts[job.id] = Grant(job.gpus)
            else:
                verdicts[job.id] = Refusal()
        return Decision(verdicts)


def _philly(cluster: str, policy: str) -> Callable[[Path], dict[str, float]]:
    def measure(data: Path) -> dict[str, float]:
        begin = process_time()
        workload = read_workload(data / PHILLY, "philly")
        own = DictPolicy() if policy == "newcomer" else None
        scenario = Scenario(parse_cluster(cluster), "fifo" if own else policy, restart_cost="0")
        outcome = run(scenario, workload, policy=own)
        summary = outcome.summary
        figures = {key: float(summary[key]) for key in ("avg_jct", "decisions", "restarts", "completed")}
        return {"seconds": process_time() - begin, **figures}

    return measure


def _live_cycles(policy: str) -> tuple[float, float]:
    """Return CPU seconds of the first cycle, which starts thousands of jobs, and the median of the later ones."""
    rng = np.random.default_rng(7)
    sizes = rng.choice([1, 1, 1, 2, 4, 8], 10_200).tolist()
    work = rng.uniform(1e5, 1e6, 10_200).tolist()
    submitted = [0.0] * 10_000 + [10.0 * (i + 1) for i in range(200)]
    jobs = [
        Job(id=f"j{i}", submitted=at, gpus=gpus, work=seconds)
        for i, (at, gpus, seconds) in enumerate(zip(submitted, sizes, work, strict=True))
    ]
    scenario = Scenario(parse_cluster("gpu:1024x8"), policy, restart_cost="0")
    seconds = list(islice(cycle_seconds(scenario, jobs), 150))
    return seconds[0], float(np.median(seconds[1:]))


def _cold(policy: str) -> Callable[[Path], dict[str, float]]:
    return lambda _: {"seconds": _live_cycles(policy)[0]}


def _steady(policy: str) -> Callable[[Path], dict[str, float]]:
    return lambda _: {"seconds": _live_cycles(policy)[1]}


def _growth(policy: str, workload: str) -> Callable[[Path], dict[str, float]]:
    return lambda _: scale.growth(policy, workload)


def _policy_growth() -> list[Bench]:
    """Measure how each policy's cycle grows on each workload; the budget is for a steady cycle at the largest size."""
    live, nodes = scale.SIZES[-1]
    return [
        Bench(
            f"scale-{policy}-{workload}",
            f"a steady cycle, {live:,} live {workload} jobs on {8 * nodes:,} GPUs, {policy}",
            0.1,
            _growth(policy, workload),
            1024.0,
        )
        for policy in POLICIES
        for workload in scale.WORKLOADS
    ]


def _new_process(arguments: Sequence[str]) -> Callable[[Path], dict[str, float]]:
    def measure(_: Path) -> dict[str, float]:
        seconds = []
        for _turn in range(5):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        return {"seconds": min(seconds)}

    return measure


def _filling(objective: str, jobs: int, types: int) -> Callable[[Path], dict[str, float]]:
    return lambda _: solve.filling(objective, jobs, types)


def _solvers() -> list[Bench]:
    """Benchmarks of Gavel's programs; the budgets are for plain numpy."""
    named = {
        "max-min": "max-min fairness",
        "makespan": "least makespan",
        "ftf": "finish-time fairness",
        "flat": "water filling",
        "tree": "hierarchical water filling, 20 entities, half of them FIFO",
    }
    sizes = {(2048, 3): 0.03, (2048, 6): 0.1, (8192, 6): 0.4}
    benches = [
        Bench(
            f"solve-{name}-{n}x{types}",
            f"{what}, {n:,} jobs × {types} types",
            budget,
            _filling(name, n, types),
        )
        for name, what in named.items()
        for (n, types), budget in sizes.items()
    ]
    cost = Bench("solve-cost-2048x3", "least cost, 2,048 jobs × 3 types", 0.2, lambda _: solve.cost(2048, 3))
    what = "space sharing, water-filled, 2,048 jobs of 26 kinds × 3 types"
    shared = Bench("solve-sharing-2048x3", what, 1.0, lambda _: solve.sharing(2048), 1024.0)
    continuous = "Gavel's continuous-single setting, 300 jobs on 108 GPUs, gavel.max-min"
    return [*benches, cost, shared, Bench("simulate-gavel", continuous, 0.6, _gavel)]


def _auctions_and_shares() -> list[Bench]:
    """Benchmarks of Themis's auctions and AFS's divisions."""
    counted = "200 bidders for 256 GPUs, all payments"
    named = "50 bidders on 16 named machines of 4 GPUs, all payments"
    return [
        Bench("auction-counts", counted, 0.2, lambda _: auction.counts(200, 256)),
        Bench("auction-machines", named, 5.0, lambda _: auction.machines(50, 16, 4)),
        Bench("afs-p", "AFS-P, 10,000 jobs on 20,000 GPUs", 0.1, lambda _: elastic.afs_p()),
        Bench("afs-l", "AFS-L, 1,000 jobs on 2,000 GPUs", 0.1, lambda _: elastic.afs_l()),
    ]


def _goodput() -> list[Bench]:
    """Benchmarks of Pollux's fits, batch sizes and decisions."""
    return [
        Bench("fit", "one job's step times from 100 measurements", 0.02, lambda _: goodput.fit(100)),
        Bench("batches", "best batches, 2,000 jobs on 12 allocations", 0.1, lambda _: goodput.batches(2000)),
        Bench("pollux-160", "Pollux, 160 jobs on 16x4 GPUs", 0.02, lambda _: goodput.decision(160, "t4:16x4")),
        Bench("pollux-2000", "Pollux, 2,000 jobs on 256x8 GPUs", 0.3, lambda _: goodput.decision(2000, "t4:256x8")),
        Bench(
            "pollux-genetic",
            "Pollux, 60 jobs on 16x4 GPUs, compared with the paper's genetic search",
            0.02,
            lambda _: goodput.against_genetic(60, "t4:16x4"),
        ),
    ]


def _market() -> list[Bench]:
    """Benchmarks of decisions of ``shoal``."""
    sizes = (("kinds", 2_000, 256, 0.05), ("rigid", 10_000, 1_024, 0.1), ("kinds", 10_000, 1_024, 0.1))
    adaptive = "a decision of shoal, 160 adaptive jobs on 16x4 GPUs"
    return [
        Bench("market-160", adaptive, 0.005, lambda _: goodput.market(160, "t4:16x4")),
        *(
            Bench(
                f"market-{live}-{workload}",
                f"a steady cycle of shoal, {live:,} live {workload} jobs on {8 * nodes:,} GPUs",
                budget,
                _market_cycles(workload, live, nodes),
            )
            for workload, live, nodes, budget in sizes
        ),
    ]


def _market_cycles(workload: str, live: int, nodes: int) -> Callable[[Path], dict[str, float]]:
    def measure(_: Path) -> dict[str, float]:
        found = scale.cycles("shoal", workload, live, nodes)
        return {"seconds": found.steady, "first_seconds": found.first, "longest_seconds": found.longest}

    return measure


def _window(jobs: int, odd: bool) -> Callable[[Path], dict[str, float]]:
    return lambda _: shockwave.window(jobs, odd=odd)


def _mixes(jobs: int) -> Callable[[Path], dict[str, float]]:
    return lambda _: shockwave.mixes(jobs)


def _windows() -> list[Bench]:
    """Benchmarks of Shockwave's windows and public traces; the gap is on welfare at a fixed makespan level."""
    benches = []
    for jobs, budget in ((500, 0.05), (1000, 0.1), (2000, 0.2)):
        what = f"a window of 20 rounds, {jobs:,} jobs on 256 GPUs, with its ranking"
        benches.append(Bench(f"window-{jobs}", what, budget, _window(jobs, odd=False)))
        benches.append(
            Bench(f"window-{jobs}-odd", f"{what}; gangs that do not divide", budget, _window(jobs, odd=True))
        )
        mixes = f"{what}; the longest of {len(shockwave.MIXES)} mixes of gangs, 11 and 24 among them"
        benches.append(Bench(f"window-{jobs}-mixes", mixes, budget, _mixes(jobs)))
    for jobs, cluster, speeds, budget in ((120, "v100:8x4", "tacc", 1.0), (900, "v100:64x4", "wisr", 20.0)):
        what = f"Shockwave's public {jobs}-job trace on {cluster}, shockwave"
        data = Path(shockwave.TRACES) / f"jobs_{jobs}_{speeds}.json"
        benches.append(Bench(f"shockwave-{jobs}", what, budget, _trace(jobs, cluster, speeds), None, data))
    return benches


def _trace(jobs: int, cluster: str, speeds: str) -> Callable[[Path], dict[str, float]]:
    return lambda data: shockwave.trace(data, jobs, cluster, speeds)


def _live() -> list[Bench]:
    """Benchmarks of a control plane and agents in processes of their own."""
    alone = "300 submissions one by one, each durable before the next (150/s); wall clock"
    batched = "10,000 submissions in batches of 1,000, durable (1,000/s); wall clock"
    cancelled = "from the end of its grace until a cancelled job that ignores signals is gone, worst of 5; wall clock"
    first = "from submission to a job's first line, median of 11; wall clock"
    idle = "CPU seconds per second of an idle agent, and its memory"
    life = "CPU of one of 1,000 one-GPU `/bin/true` jobs on 4x8 virtual GPUs, fifo, in all of Shoal's processes"
    again = "a control plane killed with 10,000 live jobs answers again; wall clock"
    return [
        Bench("live-submit-each", alone, 2.0, lambda _: live.submissions(300, 1)),
        Bench("live-submit-batch", batched, 10.0, lambda _: live.submissions(10_000, 1000)),
        Bench("live-start", first, 0.5, lambda _: live.start()),
        Bench("live-restart", again, 5.0, lambda _: live.restart(10_000)),
        Bench("live-idle", idle, 0.01, lambda _: live.idle(), 60.0),
        Bench("job-life", life, 0.01, lambda _: job_life.job_life()),
        Bench("live-cancel", cancelled, 0.2, lambda _: live.cancel()),
        *_scale(),
    ]


def _scale() -> list[Bench]:
    """Benchmarks of one control plane with many nodes and jobs, and of several."""
    busy = "share of a core of a control plane with {:,} simulated nodes of 8 GPUs, {:,} live jobs, {} ends a second"
    listed = "another user's submission while one lists 10,000 queued jobs 24 times at once, median; wall clock"
    rings = "a million GPUs, 40,000 jobs, {} ring{}: CPU of the busiest"
    return [
        Bench(
            "live-scale-1000", busy.format(1000, 4000, 20), 0.2, lambda _: live_scale.live_scale(1000, 4000, 20), 1000.0
        ),
        Bench(
            "live-scale-5000",
            busy.format(5000, 20_000, 100),
            0.6,
            lambda _: live_scale.live_scale(5000, 20_000, 100),
            1000.0,
        ),
        Bench("live-lists", listed, 0.1, lambda _: live_lists.lists(10_000)),
        *(
            Bench(f"cells-{count}", rings.format(count, "s" * (count > 1)), 600.0 / count, _rings(count))
            for count in (1, 10, 100)
        ),
    ]


def _rings(count: int) -> Callable[[Path], dict[str, float]]:
    return lambda _: cells.million_gpus(count, 40_000)


def _trainer() -> list[Bench]:
    """Benchmarks of workers that join and leave a training job."""
    larger = "two workers pause while two more join them, 2 MB of state, median of 30; wall clock"
    smaller = "two workers pause while two others leave, median of 30; wall clock"
    called_off = "a step gets longer by this while expansions are ordered and withdrawn; wall clock"
    session = "a step of 10 ms on four ranks gets longer by this under Shoal; wall clock"
    noise = "the same with the noise scale measured, compared with a step without Shoal; wall clock"
    return [
        Bench("trainer-expand", larger, 0.01, lambda _: trainer.expand(), needs=_TRAINER_NEEDS),
        Bench("trainer-shrink", smaller, 0.003, lambda _: trainer.shrink(), needs=_TRAINER_NEEDS),
        Bench("trainer-cancel", called_off, 0.0005, lambda _: trainer.cancel(), needs=_TRAINER_NEEDS),
        Bench("trainer-session", session, 0.0001, lambda _: trainer.overhead("session"), needs=_TRAINER_NEEDS),
        Bench("trainer-noise", noise, 0.0003, lambda _: trainer.overhead("noise"), needs=_TRAINER_NEEDS),
    ]


def _gavel(_: Path) -> dict[str, float]:
    workload = generate("gavel-continuous-single", jobs=300, seed=0, interarrival=720.0)
    scenario = Scenario(parse_cluster("v100:9x4,p100:9x4,k80:9x4"), "gavel.max-min")
    run(scenario, workload.first(5))  # imports of the first run are not timed
    summary = run(scenario, workload).summary
    return {"seconds": float(summary["cpu_seconds"]), "avg_jct": float(summary["avg_jct"])}


def _all() -> list[Bench]:
    benches = []
    for cluster, budgets in (("512x4", (7.0, 7.0, 7.0)), ("128x4", (14.0, 15.0, 18.0))):
        for policy, budget in zip(("fifo", "srtf", "las"), budgets, strict=True):
            what = f"82,247 Philly jobs, {policy}, {cluster} GPUs, reading and summary included"
            measure = _philly(f"gpu:{cluster}", policy)
            benches.append(Bench(f"philly-{cluster}-{policy}", what, budget, measure, 320.0, PHILLY))
    newcomer = "the same on 512x4 with a user's policy that returns a plain dict"
    benches.append(Bench("philly-512x4-newcomer", newcomer, 35.0, _philly("gpu:512x4", "newcomer"), 320.0, PHILLY))
    for policy in ("fifo", "srtf", "las"):
        live = f"10,000 live jobs on 8,192 GPUs, {policy}"
        benches.append(Bench(f"cycle-steady-{policy}", f"one cycle, {live}, steady", 0.01, _steady(policy)))
        benches.append(Bench(f"cycle-cold-{policy}", f"one cycle, {live}, thousands start", 0.1, _cold(policy)))
    benches += _policy_growth()
    folding = "a journal of 1,000,000 events, 24,096 jobs live, folded from its last compaction, 50,000 records back"
    benches.append(Bench("fold-journal", folding, 3.0, fold.measure))
    benches += _solvers()
    benches += _auctions_and_shares()
    benches += _windows()
    benches += _goodput()
    benches += _market()
    benches += _live()
    benches += _trainer()
    benches.append(Bench("import", "import shoal", 0.3, _new_process(["-c", "import shoal"])))
    trainer = _new_process(["-c", "from shoal.trainer.session import Session"])
    benches.append(Bench("trainer-import", "import the trainer's session, which needs no framework", 0.1, trainer))
    month = (
        "shoal advise on an invented month of 20,000 jobs: eight policies with intervals, table and page; all processes"
    )
    benches.append(Bench("advise", month, 200.0, lambda _: advise.advise()))
    ten = ["-m", "shoal", "simulate", "--workload", "demo", "--jobs", "10", "--cluster", "v100:2x4", "--policy", "fifo"]
    benches.append(Bench("simulate-ten", "shoal simulate of ten jobs, from a cold start", 0.6, _new_process(ten)))
    benches.append(Bench("help", "shoal --help", 0.5, _new_process(["-m", "shoal", "--help"])))
    return benches


BENCHES = {bench.name: bench for bench in _all()}


def chosen(names: Sequence[str]) -> list[Bench]:
    """Return the benchmarks with these names or name prefixes; if none is given all but ``scale``, which takes long."""
    if not names:
        return [bench for bench in BENCHES.values() if not bench.name.startswith("scale-")]
    found: dict[str, Bench] = {}
    for name in names:
        matching = {n: b for n, b in BENCHES.items() if n == name or n.startswith(f"{name}-")}
        if not matching:
            raise InputError("bench", name, nearest(name, BENCHES))
        found.update(matching)
    return list(found.values())


def measure(bench: Bench, data: Path | None) -> Result:
    """Run one benchmark in a new process; ``data`` is the folder of public traces."""
    blank = Result(bench.name, bench.what, None, bench.budget_seconds, None, bench.budget_mb, {})
    if bench.data is not None and not (data is not None and (data / bench.data).exists()):
        return blank
    if not all(find_spec(module) for module in bench.needs):
        return blank
    done = subprocess.run(
        [sys.executable, "-m", "shoal.research.bench.registry", bench.name, str(data or "")],
        check=True,
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    figures: dict[str, Any] = json.loads(done.stdout)
    seconds, peak = figures.pop("seconds"), figures.pop("peak_mb")
    return replace(blank, seconds=seconds, peak_mb=peak, more=figures)


def _main(name: str, data: str) -> None:
    figures = BENCHES[name].measure(Path(data))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"peak_mb": peak, **figures}))


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2])
