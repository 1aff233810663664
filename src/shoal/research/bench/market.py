"""Benches of Shockwave: windows solved and ranked at the sizes of the paper's figure 12, and its public traces."""

from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from shoal.solve.window import Claims

TRACES = "shockwave"
"""The folder of the public traces."""

_SEED, _TRIES, _ROUNDS, _GPUS = 3, 3, 20, 256
_EVEN, _ODD = ((1, 2, 4, 8), (0.6, 0.3, 0.09, 0.01)), ((3, 5, 7, 9), (0.4, 0.3, 0.2, 0.1))

MIXES = ((1, 2, 4, 8), (1, 2, 4, 8, 11, 24), (11, 24), (3, 5, 7), (6, 10, 15), (13, 29, 31), (48, 80, 100))
"""Gangs of which a job is of one as often as of another; of the odd ones few sets fill 256 GPUs, or none."""

_DRAWS = 5


def window(jobs: int, *, odd: bool) -> dict[str, float]:
    """A window of 20 rounds on 256 GPUs with its ranking; ``odd`` gangs do not divide the cluster."""
    return _planned(gangs(jobs, *(_ODD if odd else _EVEN)))


def mixes(jobs: int) -> dict[str, float]:
    """The same for every mix of gangs and some draws of it; the longest of them, and the worst gap."""
    found = [_planned(gangs(jobs, sizes, seed=seed)) for sizes in MIXES for seed in range(_DRAWS)]
    return {name: max(one[name] for one in found) for name in ("seconds", "gap")}


def _planned(claims: "Claims") -> dict[str, float]:
    from shoal.solve.window import plan

    order = np.argsort(claims.left, kind="stable")
    seconds = np.inf
    for _ in range(_TRIES):
        begin = process_time()
        found = plan(claims, _GPUS, 1.0, order)
        seconds = min(seconds, process_time() - begin)
    return {"seconds": float(seconds), "gap": found.gap}


def gangs(jobs: int, sizes: tuple[int, ...], often: tuple[float, ...] | None = None, seed: int = _SEED) -> "Claims":
    """Jobs of unlike lengths, some well under way, weighed by ρ to the fifth, their welfare the true logarithm."""
    from shoal.solve.window import Claims

    chance = np.random.default_rng(seed)
    left = np.exp(chance.normal(3.0, 1.2, jobs))
    done = chance.uniform(0.0, 0.9, jobs) * (chance.random(jobs) < 0.7)
    gained = (1.0 - done[:, None]) * np.arange(_ROUNDS + 1) / left[:, None]
    progress = np.clip(done[:, None] + gained, 1e-6, 1.0)
    weights = chance.uniform(0.5, 1.6, jobs) ** 5
    return Claims(chance.choice(sizes, jobs, p=often).astype(np.int32), weights[:, None] * np.log(progress), left)


def trace(data: Path, jobs: int, cluster: str, speeds: str) -> dict[str, float]:
    """One of the public traces under ``shockwave``, restarts costing 20 s."""
    from shoal.core.topology import parse_cluster
    from shoal.scenario.scenario import Scenario
    from shoal.scenario.simulation import run
    from shoal.workload.files import read_workload

    files = data / TRACES
    workload = read_workload(files / f"jobs_{jobs}_{speeds}.json", "shockwave")
    table = str(files / "throughputs" / f"{speeds}_throughputs.json")
    scenario = Scenario(parse_cluster(cluster), "shockwave", restart_cost="20", throughputs=table)
    run(scenario, workload.first(5))  # what is imported on first use is not the simulation
    summary = run(scenario, workload).summary
    return {name: float(summary[key]) for name, key in (("seconds", "cpu_seconds"), ("makespan", "makespan"))}
