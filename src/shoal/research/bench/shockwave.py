"""Benchmarks of Shockwave: windows solved and ranked at the sizes of the paper's figure 12, and its public traces."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shoal.research.bench.timing import best_of

if TYPE_CHECKING:
    from shoal.solve.window import Claims

TRACES = "shockwave"
"""Folder of the public traces."""

_SEED, _ROUNDS, _GPUS = 3, 20, 256
_EVEN, _ODD = ((1, 2, 4, 8), (0.6, 0.3, 0.09, 0.01)), ((3, 5, 7, 9), (0.4, 0.3, 0.2, 0.1))

MIXES = ((1, 2, 4, 8), (1, 2, 4, 8, 11, 24), (11, 24), (3, 5, 7), (6, 10, 15), (13, 29, 31), (48, 80, 100))
"""Sets of equally likely gang sizes; few or no combinations of the odd ones fill 256 GPUs."""

_DRAWS = 5


def window(jobs: int, *, odd: bool) -> dict[str, float]:
    """Time a window of 20 rounds on 256 GPUs with its ranking; ``odd`` gangs do not divide the cluster."""
    return _time_plan(random_claims(jobs, *(_ODD if odd else _EVEN)))


def mixes(jobs: int) -> dict[str, float]:
    """Time such a window for five draws of every mix of gang sizes; returns the longest time and the worst gap."""
    found = [_time_plan(random_claims(jobs, sizes, seed=seed)) for sizes in MIXES for seed in range(_DRAWS)]
    return {name: max(one[name] for one in found) for name in ("seconds", "gap")}


def _time_plan(claims: "Claims") -> dict[str, float]:
    from shoal.solve.window import plan

    order = np.argsort(claims.left, kind="stable")
    seconds, found = best_of(3, lambda: plan(claims, _GPUS, 1.0, order))
    return {"seconds": seconds, "gap": found.gap}


def random_claims(
    jobs: int, sizes: tuple[int, ...], probabilities: tuple[float, ...] | None = None, seed: int = _SEED
) -> "Claims":
    """Return claims of random jobs, some partly done; welfare is the exact logarithm of progress, weighted by ρ⁵."""
    from shoal.solve.window import Claims

    rng = np.random.default_rng(seed)
    left = np.exp(rng.normal(3.0, 1.2, jobs))
    done = rng.uniform(0.0, 0.9, jobs) * (rng.random(jobs) < 0.7)
    gained = (1.0 - done[:, None]) * np.arange(_ROUNDS + 1) / left[:, None]
    progress = np.clip(done[:, None] + gained, 1e-6, 1.0)
    weights = rng.uniform(0.5, 1.6, jobs) ** 5
    return Claims(rng.choice(sizes, jobs, p=probabilities).astype(np.int32), weights[:, None] * np.log(progress), left)


def trace(data: Path, jobs: int, cluster: str, speeds: str) -> dict[str, float]:
    """Simulate one of the public traces under ``shockwave``; a restart costs 20 s."""
    from shoal.core.topology import parse_cluster
    from shoal.scenario.scenario import Scenario
    from shoal.scenario.simulation import run
    from shoal.workload.files import read_workload

    files = data / TRACES
    workload = read_workload(files / f"jobs_{jobs}_{speeds}.json", "shockwave")
    table = str(files / "throughputs" / f"{speeds}_throughputs.json")
    scenario = Scenario(parse_cluster(cluster), "shockwave", restart_cost="20", throughputs=table)
    run(scenario, workload.first(5))  # imports of the first run are not timed
    summary = run(scenario, workload).summary
    return {name: float(summary[key]) for name, key in (("seconds", "cpu_seconds"), ("makespan", "makespan"))}
