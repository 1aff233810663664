"""Shockwave's stochastic market (NSDI '23 appendix F): welfare of expected utilities, with two jobs and more.

Jobs change their pace at random: after each round of its own a slow job becomes fast with its own probability, for
good. A plan says which jobs run, one GPU each, by round and by the paces seen so far. Expected utilities of plans that
toss a coin first form a polytope, that of the linear program (6); its corners are found by going backwards through the
rounds, and the mixture of corners with the most Σ log utility by Cover's iteration. No plan is better by more than the
gap: the largest Σ uᵢ/Uᵢ over corners, less the number of jobs. There are 2 states to the power of the number of
changing jobs.

References: Cover, "An Algorithm for Maximizing Expected Log Investment Return", IEEE Trans. Inf. Theory 1984.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import exp, log
from statistics import fmean
from typing import Any

import numpy as np

from shoal.core.arrays import Floats
from shoal.research.repro.context import ReproContext
from shoal.research.repro.pollux_life import interval
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.table import REPRODUCES, Cell, Column, Table, differs, table

ROUNDS, SEEDS = 6, 5
MARKETS = ((2, 1), (3, 1), (4, 2), (5, 2))
"""Jobs and GPUs."""

_SETTLED = 1e-4
_MOST_STEPS = 50_000


@dataclass(frozen=True, slots=True)
class ChangingJob:
    """Epochs a round while slow and once fast, and the probability to change after a round of its own."""

    slow: float
    fast: float
    change: float

    def pace(self, changed: bool) -> float:
        """Return its epochs a round."""
        return self.fast if changed else self.slow

    def blind(self, rounds: int) -> float:
        """Return its expected epochs in this number of rounds, whatever is seen."""
        slow = [(1.0 - self.change) ** n for n in range(rounds)]
        return sum(s * self.slow + (1.0 - s) * self.fast for s in slow)


def drawn_market(jobs: int, seed: int) -> tuple[ChangingJob, ...]:
    """Return a random market; its first job keeps its pace."""
    rng = np.random.default_rng([seed, jobs])
    paces = rng.uniform(1.0, 2.0, jobs)
    steady = ChangingJob(float(paces[0]), float(paces[0]), 0.0)
    changing = (
        ChangingJob(float(p), float(p * rng.uniform(2.0, 4.0)), float(rng.uniform(0.1, 0.5))) for p in paces[1:]
    )
    return (steady, *changing)


def best_corner(market: Sequence[ChangingJob], gpus: int, rounds: int, weights: Floats) -> Floats:
    """Return the expected epochs by job of the plan with the largest weighted sum of them."""
    count = len(market)
    paces = list(product((False, True), repeat=count))
    ahead = {pace: np.zeros(count) for pace in paces}
    sets = list(combinations(range(count), min(gpus, count)))
    for _ in range(rounds):
        now = {}
        for pace in paces:
            choices = [_after(market, pace, chosen, ahead) for chosen in sets]
            now[pace] = max(choices, key=lambda epochs: float(weights @ epochs))
        ahead = now
    return ahead[paces[0]]


def _after(
    market: Sequence[ChangingJob], pace: tuple[bool, ...], chosen: Sequence[int], ahead: dict[tuple[bool, ...], Floats]
) -> Floats:
    """Return the expected epochs from now on if these jobs run in this round."""
    epochs = np.zeros(len(market))
    epochs[list(chosen)] = [market[i].pace(pace[i]) for i in chosen]
    may = [i for i in chosen if not pace[i] and market[i].change > 0.0]
    for changes in product((False, True), repeat=len(may)):
        chance, later = 1.0, list(pace)
        for i, changed in zip(may, changes, strict=True):
            chance *= market[i].change if changed else 1.0 - market[i].change
            later[i] = changed
        epochs = epochs + chance * ahead[tuple(later)]
    return epochs


def equilibrium(market: Sequence[ChangingJob], gpus: int, rounds: int) -> tuple[Floats, float, int]:
    """Return the expected epochs by job with the most Σ log, the gap, and the number of corners in the mixture."""
    count = len(market)
    corners = [best_corner(market, gpus, rounds, np.where(np.arange(count) == i, 1.0, 0.01)) for i in range(count)]
    shares = np.full(len(corners), 1.0 / len(corners))
    while True:
        matrix = np.array(corners)
        for _ in range(_MOST_STEPS):
            gain = matrix @ (1.0 / (shares @ matrix)) / count
            shares = shares * gain
            if float(gain.max()) - 1.0 < 0.1 * _SETTLED / count:
                break
        had = shares @ matrix
        corner = best_corner(market, gpus, rounds, 1.0 / had)
        gap = float((corner / had).sum()) - count
        if gap < _SETTLED or any(np.allclose(corner, one) for one in corners):
            return had, gap, int((shares > 1e-3).sum())
        corners.append(corner)
        shares = np.append(shares * (1.0 - 1.0 / len(corners)), 1.0 / len(corners))


def planned_once(market: Sequence[ChangingJob], gpus: int, rounds: int) -> Floats:
    """Return the expected epochs by job of the best numbers of rounds that are fixed beforehand."""
    blind = np.array([[job.blind(n) for n in range(rounds + 1)] for job in market])
    splits = (n for n in product(range(1, rounds + 1), repeat=len(market)) if sum(n) <= gpus * rounds)
    best = max(splits, key=lambda n: sum(log(blind[i, c]) for i, c in enumerate(n)))
    return np.array([blind[i, c] for i, c in enumerate(best)])


def solve_market(jobs: int, gpus: int, seed: int) -> dict[str, Any]:
    """Return the welfare of the market and of a plan made once, the gap, and the least utility over a fair part.

    A fair part is all rounds with a probability of GPUs over jobs.
    """
    market = drawn_market(jobs, seed)
    had, gap, corners = equilibrium(market, gpus, ROUNDS)
    once = planned_once(market, gpus, ROUNDS)
    part = np.array([gpus / jobs * job.blind(ROUNDS) for job in market])
    return {
        "welfare": float(np.log(had).sum()),
        "once": float(np.log(once).sum()),
        "gap": gap,
        "corners": corners,
        "least": float((had / part).min()),
    }


def market_verdict(found: Sequence[dict[str, Any]]) -> str:
    """Return the verdict: each market is solved, no worse than a plan made once, and no job is below its fair part."""
    wrong = []
    if any(one["gap"] > _SETTLED for one in found):
        wrong.append(f"a gap is above {_SETTLED:g}")
    if any(one["welfare"] < one["once"] - 1e-9 for one in found):
        wrong.append("a plan made once has more welfare")
    below = sum(one["least"] < 1.0 - 1e-6 for one in found)
    if below:
        wrong.append(f"{below} of {len(found)} markets leave a job below its part")
    return differs("; ".join(wrong)) if wrong else REPRODUCES


def _appendix_f(context: ReproContext) -> list[Table]:
    rows: list[list[Cell]] = []
    everything: list[dict[str, Any]] = []
    for jobs, gpus in MARKETS[:2] if context.quick else MARKETS:
        found = []
        for seed in range(SEEDS):
            key = {"shockwave": "appendix F", "jobs": jobs, "gpus": gpus, "rounds": ROUNDS, "seed": seed}
            found.append(context.run(key, f"{jobs} jobs, {gpus} GPUs, seed {seed}", solve_market, jobs, gpus, seed))
        gains = [exp((one["welfare"] - one["once"]) / jobs) - 1.0 for one in found]
        low, high = interval(gains)
        worst = max(one["gap"] for one in found)
        most, least = max(one["corners"] for one in found), min(one["least"] for one in found)
        rows.append([f"{jobs} jobs, {gpus} GPUs", 2 ** (jobs - 1), most, worst, fmean(gains), low, high, least])
        everything += found
    columns = [Column("market"), Column("states a round", ".0f"), Column("most corners", ".0f")]
    columns += [Column("worst gap", ".0e"), Column("epochs over a plan made once", "+.1%"), Column("from", "+.1%")]
    columns += [Column("to", "+.1%"), Column("least over a fair part", ".3f")]
    paper = "the linear program (6) maximises Nash social welfare in expectation; no figures"
    here = (
        f"{ROUNDS} rounds, {SEEDS} random markets each; epochs: geometric mean over jobs, 95 % interval over markets; "
    )
    here += "a job uses one GPU at most, a bound that the paper's market does not have"
    title = "appendix F: welfare over time in expectation"
    return [table(title, columns, rows, paper, here, verdict=market_verdict(everything))]


REPRODUCTIONS = (
    Reproduction("shockwave-f", "Shockwave (NSDI '23)", "appendix F: the stochastic market, 2 to 5 jobs", _appendix_f),
)
