"""One cell: a policy on one draw of a ground, with a limit on its CPU seconds."""

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

from shoal.core.errors import InputError
from shoal.core.topology import parse_cluster
from shoal.report.metrics import Summary
from shoal.research.grounds.ground import GROUNDS, Ground
from shoal.research.grounds.least_times import least_times, true_factors
from shoal.research.repro.shockwave import speeds
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import run
from shoal.solve.schedule_bounds import completion_bound, makespan_bound

BOUND = "bound"
"""In place of a policy: lower bounds on the mean JCT and the makespan of any."""

LIMIT = 60.0
"""CPU seconds of a cell after which it is stopped."""


FAILED = "failed: "
"""How the reason of a run that raised an error begins."""


class CpuLimitReached(BaseException):
    """Raised in a cell at its CPU limit; not an ``Exception``, so that no policy catches it."""


def cells(
    ground: str, policy: str, draw: int, *, data: Path | None = None, limit: float = LIMIT
) -> dict[str, float | int | str | None]:
    """Return the metrics of a policy on one draw of a ground.

    ``jct``, ``p99`` and ``makespan`` are in seconds; ``rho`` and ``rho_mean`` the worst and the mean isolated ρ;
    ``unfair`` the fraction of jobs with ρ above 1; ``restarts`` per job; ``cpu`` CPU seconds; ``app_rho`` the worst ρ
    of an app, if there are apps. ``stopped`` says why there are no metrics, or why they are not
    comparable: the CPU limit, unfinished jobs, an error, or a policy that cannot run here. In place of a policy
    ``BOUND`` gives ``jct`` and ``makespan`` that no schedule can be below, and ``cpu``.
    """
    chosen = GROUNDS[ground]
    try:
        with _limited(limit):
            if policy == BOUND:
                return _bounds(chosen, draw, data)
            return _metrics(simulate(chosen, policy, draw, data))
    except CpuLimitReached:
        return {"stopped": f"stopped after {limit:g} CPU s", "cpu": limit}
    except InputError as error:
        return {"stopped": str(error)}
    except Exception as error:  # a bug of one policy must not end the runs of the others
        return {"stopped": f"{FAILED}{type(error).__name__}: {error}"}


def simulate(ground: Ground, policy: str, draw: int, data: Path | None = None) -> Summary:
    """Run a policy on one draw of a ground and return the summary of the run."""
    workload = ground.source(data, draw)
    with scenario_of(ground, policy, draw, data) as scenario:
        return run(scenario, workload).summary


@contextmanager
def scenario_of(ground: Ground, policy: str, draw: int, data: Path | None = None) -> Iterator[Scenario]:
    """The scenario of a policy on one draw of a ground; files that it reads exist only in this context."""
    folder = data or Path()
    settings = {
        **ground.settings,
        "profiles": tuple(str(folder / path) for path in ground.profiles),
        "throughputs": str(folder / ground.throughputs) if ground.throughputs else None,
    }
    with TemporaryDirectory() as scratch:
        if ground.flat:
            file = Path(scratch) / "speeds.json"
            file.write_bytes(speeds(folder, ground.flat))
            settings["throughputs"] = str(file)
        yield Scenario(parse_cluster(ground.cluster), policy, seed=draw, knowledge=ground.knowledge, **settings)


def _metrics(summary: Summary) -> dict[str, Any]:
    rho: Mapping[str, Any] = summary["rho"]["isolated"]
    apps = summary["apps"]
    unfinished = summary["jobs"] - summary["completed"]
    return {
        "jct": summary["avg_jct"],
        "p99": summary["p99_jct"],
        "makespan": summary["makespan"],
        "rho": rho["max"],
        "rho_mean": rho["mean"],
        "unfair": rho["unfair_1.0"],
        "restarts": summary["restarts"] / summary["jobs"],
        "cpu": summary["cpu_seconds"],
        "jobs": summary["jobs"],
        **({"app_jct": apps["avg_seconds"], "app_rho": apps["rho"]["max"]} if apps else {}),
        **({"stopped": f"{unfinished} of {summary['jobs']} jobs did not finish"} if unfinished else {}),
    }


def _bounds(ground: Ground, draw: int, data: Path | None) -> dict[str, Any]:
    begin, jobs = process_time(), ground.source(data, draw).jobs
    if any(job.search is not None for job in jobs):
        return {"stopped": "which jobs are submitted depends on the policy", "cpu": 0.0}
    with scenario_of(ground, "fifo", draw, data) as unresolved:
        scenario = unresolved.resolved(jobs)
        known = scenario.speeds()
    factors = true_factors(jobs, scenario.cluster, known, scenario.noise, scenario.seed)
    needs = least_times(jobs, scenario.cluster, known, factors)
    mean, last = completion_bound(needs), makespan_bound(needs)
    return {"jct": mean.mean, "makespan": last.seconds, "cpu": process_time() - begin, "jobs": len(jobs)}


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise ``CpuLimitReached`` in the main thread once the process has used this many more CPU seconds."""

    def stop(number: int, frame: object) -> None:
        raise CpuLimitReached

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)
