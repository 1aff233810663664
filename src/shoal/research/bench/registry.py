"""The speed table: each bench runs in a process of its own and is measured in CPU seconds and peak memory.

Those of a live cluster are in seconds by the clock: what somebody waits for.
"""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from shoal.core.decision import Decision, Grant, Refusal, Verdict
from shoal.core.errors import InputError, nearest
from shoal.core.snapshot import Snapshot
from shoal.core.topology import parse_cluster
from shoal.engine.loop import judge
from shoal.engine.moves import StopStartPlanner
from shoal.placement.packed import PackedPlacer
from shoal.policy.registry import parse_policy
from shoal.research.bench import auction, elastic, goodput, live, market, solve, trainer
from shoal.scenario.scenario import Scenario, make_backend, run
from shoal.workload.files import read_workload
from shoal.workload.generators.registry import generate
from shoal.workload.schema import Job

PHILLY = Path("traces/philly_pollux_82247.csv.gz")


@dataclass(frozen=True, slots=True)
class Bench:
    """A figure to measure: what it is, what it may cost, and how to get it."""

    name: str
    what: str
    budget_seconds: float
    measure: Callable[[Path], dict[str, float]]
    budget_mb: float | None = None
    data: Path | None = None
    library: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What a bench came to; ``seconds`` is None where its data or a library it needs is not to be had."""

    name: str
    what: str
    seconds: float | None
    budget_seconds: float
    peak_mb: float | None
    budget_mb: float | None
    more: dict[str, float]

    @property
    def met(self) -> bool | None:
        """Whether it kept to its budget."""
        if self.seconds is None or self.peak_mb is None:
            return None
        return self.seconds <= self.budget_seconds and (self.budget_mb is None or self.peak_mb <= self.budget_mb)


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A first policy as a newcomer would write it: a loop over the jobs and a plain dict, first come, first served."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """Whatever fits, in order of arrival; running jobs first."""
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
        own = Newcomer() if policy == "newcomer" else None
        scenario = Scenario(parse_cluster(cluster), "fifo" if own else policy, restart_cost="0")
        outcome = run(scenario, workload, policy=own)
        summary = outcome.summary
        figures = {key: float(summary[key]) for key in ("avg_jct", "decisions", "restarts", "completed")}
        return {"seconds": process_time() - begin, **figures}

    return measure


def _live_cycles(policy: str) -> tuple[float, float]:
    """CPU seconds to freeze, decide, seat and plan: when thousands start at once, and the median when one arrives."""
    chance = np.random.default_rng(7)
    sizes = chance.choice([1, 1, 1, 2, 4, 8], 10_200).tolist()
    work = chance.uniform(1e5, 1e6, 10_200).tolist()
    late = [0.0] * 10_000 + [10.0 * (i + 1) for i in range(200)]
    jobs = [
        Job(id=f"j{i}", submitted=at, gpus=gpus, work=seconds)
        for i, (at, gpus, seconds) in enumerate(zip(late, sizes, work, strict=True))
    ]
    scenario = Scenario(parse_cluster("gpu:1024x8"), policy, restart_cost="0")
    known = scenario.speeds()
    backend, state = make_backend(scenario, jobs, known), scenario.make_state(known)
    chosen, placer, mechanism = parse_policy(policy), PackedPlacer(), StopStartPlanner()
    seconds, review_at = [], float("inf")
    for _ in range(150):
        heard = backend.wait(review_at)
        state.apply_events(heard.now, heard.events)
        begin = process_time()
        judgement = judge(state.freeze(), chosen, placer, mechanism)
        seconds.append(process_time() - begin)
        state.apply_commands(judgement.commands)
        state.end_cycle(judgement.decision.carry)
        backend.send(judgement.commands)
        review_at = judgement.decision.review_at
    return seconds[0], float(np.median(seconds[1:]))


def _cold(policy: str) -> Callable[[Path], dict[str, float]]:
    return lambda _: {"seconds": _live_cycles(policy)[0]}


def _steady(policy: str) -> Callable[[Path], dict[str, float]]:
    return lambda _: {"seconds": _live_cycles(policy)[1]}


def _fresh(arguments: Sequence[str]) -> Callable[[Path], dict[str, float]]:
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
    """Gavel's programs; the budgets are for plain numpy."""
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


def _shares() -> list[Bench]:
    """Themis's auctions and AFS's divisions."""
    counted = "200 bidders for 256 GPUs, all payments"
    named = "50 bidders on 16 named machines of 4 GPUs, all payments"
    return [
        Bench("auction-counts", counted, 0.2, lambda _: auction.counts(200, 256)),
        Bench("auction-machines", named, 5.0, lambda _: auction.machines(50, 16, 4)),
        Bench("afs-p", "AFS-P, 10,000 jobs on 20,000 GPUs", 0.1, lambda _: elastic.afs_p()),
        Bench("afs-l", "AFS-L, 1,000 jobs on 2,000 GPUs", 0.1, lambda _: elastic.afs_l()),
    ]


def _goodput() -> list[Bench]:
    """Pollux's step times and batches."""
    return [
        Bench("fit", "one job's step times from 100 measurements", 0.02, lambda _: goodput.fit(100)),
        Bench("batches", "best batches, 2,000 jobs on 12 allocations", 0.1, lambda _: goodput.batches(2000)),
        Bench("pollux-160", "Pollux, 160 jobs on 16x4 GPUs", 0.02, lambda _: goodput.decision(160, "t4:16x4")),
        Bench("pollux-2000", "Pollux, 2,000 jobs on 256x8 GPUs", 0.3, lambda _: goodput.decision(2000, "t4:256x8")),
        Bench(
            "pollux-genetic",
            "Pollux, 60 jobs on 16x4 GPUs, beside the paper's search",
            0.02,
            lambda _: goodput.against_genetic(60, "t4:16x4"),
        ),
    ]


def _window(jobs: int, odd: bool) -> Callable[[Path], dict[str, float]]:
    return lambda _: market.window(jobs, odd=odd)


def _mixes(jobs: int) -> Callable[[Path], dict[str, float]]:
    return lambda _: market.mixes(jobs)


def _windows() -> list[Bench]:
    """Shockwave's windows and the public traces; the gap is on welfare at a fixed makespan level."""
    benches = []
    for jobs, budget in ((500, 0.05), (1000, 0.1), (2000, 0.2)):
        what = f"a window of 20 rounds, {jobs:,} jobs on 256 GPUs, with its ranking"
        benches.append(Bench(f"window-{jobs}", what, budget, _window(jobs, odd=False)))
        benches.append(
            Bench(f"window-{jobs}-odd", f"{what}; gangs that do not divide", budget, _window(jobs, odd=True))
        )
        mixes = f"{what}; the longest of {len(market.MIXES)} mixes of gangs, 11 and 24 among them"
        benches.append(Bench(f"window-{jobs}-mixes", mixes, budget, _mixes(jobs)))
    for jobs, cluster, speeds, budget in ((120, "v100:8x4", "tacc", 1.0), (900, "v100:64x4", "wisr", 20.0)):
        what = f"Shockwave's public {jobs}-job trace on {cluster}, shockwave"
        data = Path(market.TRACES) / f"jobs_{jobs}_{speeds}.json"
        benches.append(Bench(f"shockwave-{jobs}", what, budget, _trace(jobs, cluster, speeds), None, data))
    return benches


def _trace(jobs: int, cluster: str, speeds: str) -> Callable[[Path], dict[str, float]]:
    return lambda data: market.trace(data, jobs, cluster, speeds)


def _live() -> list[Bench]:
    """A control plane and agents as processes, asked over HTTP."""
    alone = "300 submissions one by one, each durable before the next (150/s); by the clock"
    batched = "10,000 submissions in batches of 1,000, durable (1,000/s); by the clock"
    cancelled = "a cancelled job that heeds no warning is gone so long after its grace, the worst of 5; by the clock"
    again = "a control plane killed with 10,000 live jobs answers again; by the clock"
    return [
        Bench("live-submit-each", alone, 2.0, lambda _: live.submissions(300, 1)),
        Bench("live-submit-batch", batched, 10.0, lambda _: live.submissions(10_000, 1000)),
        Bench("live-start", "from submission to a job's first line, median of 11; by the clock", 0.5, _started),
        Bench("live-restart", again, 5.0, lambda _: live.restart(10_000)),
        Bench("live-idle", "an idle agent, CPU seconds a second, and its memory", 0.01, _idle, 60.0),
        Bench("live-cancel", cancelled, 0.2, lambda _: live.cancel()),
    ]


def _trainer() -> list[Bench]:
    """Workers that join and leave a job that trains."""
    larger = "two workers pause while two more join them, 2 MB of state, median of 30; by the clock"
    smaller = "two workers pause while two others leave, median of 30; by the clock"
    called_off = "a step gets longer by this while expansions are ordered and called off; by the clock"
    session = "a step of 10 ms on four ranks gets longer by this under Shoal; by the clock"
    noise = "the same where the noise scale is measured too, beside a step without Shoal; by the clock"
    return [
        Bench("trainer-expand", larger, 0.01, lambda _: trainer.expand(), library="torch"),
        Bench("trainer-shrink", smaller, 0.003, lambda _: trainer.shrink(), library="torch"),
        Bench("trainer-cancel", called_off, 0.0005, lambda _: trainer.cancel(), library="torch"),
        Bench("trainer-session", session, 0.0001, lambda _: trainer.longer("session"), library="torch"),
        Bench("trainer-noise", noise, 0.0003, lambda _: trainer.longer("noise"), library="torch"),
    ]


def _started(_: Path) -> dict[str, float]:
    return live.start()


def _idle(_: Path) -> dict[str, float]:
    return live.idle()


def _gavel(_: Path) -> dict[str, float]:
    workload = generate("gavel-continuous-single", jobs=300, seed=0, interarrival=720.0)
    scenario = Scenario(parse_cluster("v100:9x4,p100:9x4,k80:9x4"), "gavel.max-min")
    run(scenario, workload.first(5))  # what is imported on first use is not the simulation
    summary = run(scenario, workload).summary
    return {"seconds": float(summary["cpu_seconds"]), "avg_jct": float(summary["avg_jct"])}


def _all() -> list[Bench]:
    benches = []
    for cluster, budget in (("512x4", 20.0), ("128x4", 40.0)):
        for policy in ("fifo", "srtf", "las"):
            what = f"82,247 Philly jobs, {policy}, {cluster} GPUs, reading and summary included"
            measure = _philly(f"gpu:{cluster}", policy)
            benches.append(Bench(f"philly-{cluster}-{policy}", what, budget, measure, 512.0, PHILLY))
    newcomer = "the same on 512x4 with a newcomer's policy that returns a plain dict"
    benches.append(Bench("philly-512x4-newcomer", newcomer, 90.0, _philly("gpu:512x4", "newcomer"), None, PHILLY))
    for policy in ("fifo", "srtf", "las"):
        live = f"10,000 live jobs on 8,192 GPUs, {policy}"
        benches.append(Bench(f"cycle-steady-{policy}", f"one cycle, {live}, steady", 0.01, _steady(policy)))
        benches.append(Bench(f"cycle-cold-{policy}", f"one cycle, {live}, thousands start", 0.1, _cold(policy)))
    benches += _solvers()
    benches += _shares()
    benches += _windows()
    benches += _goodput()
    benches += _live()
    benches += _trainer()
    benches.append(Bench("import", "import shoal", 0.3, _fresh(["-c", "import shoal"])))
    trainer = _fresh(["-c", "from shoal.trainer.session import Session"])
    benches.append(Bench("trainer-import", "import the trainer's session, which needs no framework", 0.1, trainer))
    benches.append(Bench("help", "shoal --help", 0.5, _fresh(["-m", "shoal", "--help"])))
    return benches


BENCHES = {bench.name: bench for bench in _all()}


def chosen(names: Sequence[str]) -> list[Bench]:
    """The benches whose names are given, or begin with what is given; all of them for none."""
    if not names:
        return list(BENCHES.values())
    found: dict[str, Bench] = {}
    for name in names:
        matching = {n: b for n, b in BENCHES.items() if n == name or n.startswith(f"{name}-")}
        if not matching:
            raise InputError("bench", name, nearest(name, BENCHES))
        found.update(matching)
    return list(found.values())


def measure(bench: Bench, data: Path) -> Result:
    """Run one bench in a process of its own."""
    blank = Result(bench.name, bench.what, None, bench.budget_seconds, None, bench.budget_mb, {})
    if bench.data is not None and not (data / bench.data).exists():
        return blank
    if bench.library is not None and find_spec(bench.library) is None:
        return blank
    done = subprocess.run(
        [sys.executable, "-m", "shoal.research.bench.registry", bench.name, str(data)],
        check=True,
        capture_output=True,
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
