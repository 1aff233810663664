"""Two jobs on the same GPUs, against a program over every job and every pair of jobs, and by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.sparse import csr_array, hstack

from shoal.core.arrays import Floats
from shoal.core.errors import InputError
from shoal.solve import job_classes as crowds
from shoal.solve.job_classes import JobClasses
from shoal.solve.linear_objectives import maximise_throughput
from shoal.solve.linear_program import LpSession
from shoal.solve.space_sharing import SharedShares, shared_cheapest, shared_makespan, shared_max_min, shared_throughput


def random_crowd(chance: np.random.Generator, jobs: int) -> JobClasses:
    """Jobs of a few kinds; pairs that help, pairs that do not, and pairs that do not fit in memory."""
    kinds, types = int(chance.integers(1, 6)), int(chance.integers(1, 7))
    speed = 10.0 ** chance.uniform(-1, 2, (kinds, 1)) * chance.uniform(0.1, 1.0, (kinds, types))
    speed *= chance.random((kinds, types)) > 0.1
    gangs = chance.choice([1.0, 1.0, 2.0, 4.0, 8.0] if chance.random() < 0.8 else np.arange(1.0, 9.0), kinds)
    pairs = [(a, b) for a in range(kinds) for b in range(a, kinds) if gangs[a] == gangs[b] and chance.random() < 0.8]
    pairs = [(b, a) if chance.random() < 0.5 else (a, b) for a, b in pairs]
    named = np.array(pairs, dtype=np.intp).reshape(-1, 2)
    part = chance.uniform(0.2, 1.0, (len(named), 2, types)) * (chance.random((len(named), 1, types)) > 0.2)
    of_job = chance.integers(0, kinds, jobs)
    return JobClasses(
        of_job, speed, gangs, chance.integers(0, 3 + jobs // 2, types).astype(float), named, part * speed[named]
    )


class JobByJob:
    """The whole program with a column for every (job, type) and every (two jobs, type): no grouping, no pruning."""

    def __init__(self, crowd: JobClasses) -> None:
        self.crowd = crowd
        named = {frozenset(p): i for i, p in enumerate(crowd.pairs.tolist())}
        self.members: list[tuple[tuple[int, float], ...]] = []
        self.types: list[int] = []
        kinds, count = crowd.kinds.tolist(), len(crowd.kinds)
        for j, size in enumerate(crowd.capacity.tolist()):
            for m in range(count):
                if crowd.gangs[kinds[m]] > size:
                    continue
                if crowd.speed[kinds[m], j] > 0:
                    self._add(j, (m, crowd.speed[kinds[m], j]))
                for n in range(m + 1, count):
                    at = named.get(frozenset((kinds[m], kinds[n])))
                    if at is None:
                        continue
                    one, other = crowd.pair_speed[at, :, j].tolist()
                    if kinds[m] == kinds[n]:
                        one = other = (one + other) / 2
                    elif crowd.pairs[at, 0] != kinds[m]:
                        one, other = other, one
                    if one > 0 and other > 0:
                        self._add(j, (m, one), (n, other))
        self.width = np.array([crowd.gangs[kinds[who[0][0]]] for who in self.members])
        self.size = len(self.members)
        entries = [(m, k, 1.0) for k, who in enumerate(self.members) for m, _ in who]
        entries += [(count + j, k, self.width[k]) for k, j in enumerate(self.types)]
        below = count + len(crowd.capacity)
        entries += [(below + m, k, -s) for k, who in enumerate(self.members) for m, s in who]
        row, column, value = zip(*entries, strict=True) if entries else ((), (), ())
        self.limits = csr_array((value, (row, column)), shape=(below + count, self.size))

    def _add(self, j: int, *who: tuple[int, float]) -> None:
        self.members.append(who)
        self.types.append(j)

    def gain(self, weights: Floats) -> Floats:
        return np.array([sum(weights[m] * s for m, s in who) for who in self.members])

    def cost(self, prices: Floats) -> Floats:
        paid: Floats = prices[self.types] * self.width
        return paid

    def top(self) -> Floats:
        top = np.zeros(len(self.crowd.kinds))
        for who in self.members:
            for m, s in who:
                top[m] = max(top[m], s)
        return top

    def most(self, gain: Floats, demand: Floats | None = None, floors: Floats | None = None) -> float:
        """max gain · x (+ level, if gain has one entry more), with throughput ≥ demand · level + floors."""
        count, types = len(self.crowd.kinds), len(self.crowd.capacity)
        matrix = self.limits
        if demand is not None:
            rising = np.concatenate([np.zeros(count + types), demand])
            matrix = hstack([matrix, csr_array(rising[:, None])], format="csr")
        kept = np.zeros(count) if floors is None else floors
        right = np.concatenate([np.ones(count), self.crowd.capacity, -kept])
        scale = float(np.abs(gain).max()) or 1.0
        found = linprog(-gain / scale, A_ub=matrix, b_ub=right)  # type: ignore[call-overload]
        assert found.status == 0, found.message
        return float(-found.fun) * scale

    def level(self, demand: Floats, floors: Floats | None = None) -> float:
        return self.most(np.append(np.zeros(self.size), 1.0), demand, floors)


def obeys(answer: SharedShares, crowd: JobClasses) -> None:
    """Everything promised, recomputed one job at a time."""
    count = len(crowd.kinds)
    assert answer.status == "optimal"
    assert answer.gap <= 1e-7
    assert answer.residual <= 1e-7
    assert (answer.alone >= 0).all()
    assert (answer.together >= 0).all()
    time, used, made = answer.alone.sum(axis=1), crowd.gangs[crowd.kinds] @ answer.alone, np.zeros(count)
    made += (crowd.speed[crowd.kinds] * answer.alone).sum(axis=1)
    named = {frozenset(p): i for i, p in enumerate(crowd.pairs.tolist())}
    seen = set()
    for (m, n), share in zip(answer.pairs.tolist(), answer.together, strict=True):
        assert m != n
        assert frozenset((m, n)) not in seen
        seen.add(frozenset((m, n)))
        a, b = crowd.kinds[m], crowd.kinds[n]
        at = named[frozenset((int(a), int(b)))]
        rates = crowd.pair_speed[at] if crowd.pairs[at, 0] == a else crowd.pair_speed[at, ::-1]
        rates = np.broadcast_to(rates.mean(axis=0), rates.shape) if a == b else rates
        for who, rate in ((m, rates[0]), (n, rates[1])):
            time[who] += share.sum()
            made[who] += rate @ share
        used = used + crowd.gangs[a] * share
    assert (time <= 1 + 1e-9).all()
    assert (used <= crowd.capacity * (1 + 1e-9)).all()
    assert answer.throughput == pytest.approx(made)


def without_pairs(crowd: JobClasses) -> JobClasses:
    return replace(crowd, pairs=crowd.pairs[:0], pair_speed=crowd.pair_speed[:0])


def instances(seed: int, count: int = 300) -> list[tuple[np.random.Generator, JobClasses]]:
    """1 to 80 jobs, even in the logarithm: the reference has a column for every two jobs."""
    chance = np.random.default_rng(seed)
    return [(chance, random_crowd(chance, int(81 ** chance.uniform()))) for _ in range(count)]


def test_throughput_equals_the_program_over_every_two_jobs() -> None:
    for chance, crowd in instances(1):
        weights = chance.choice([0.5, 1.0, 3.0], len(crowd.kinds))
        answer = shared_throughput(crowd, weights)
        obeys(answer, crowd)
        whole = JobByJob(crowd)
        if whole.size:
            assert answer.objective == pytest.approx(whole.most(whole.gain(weights)), rel=1e-6)


def test_the_least_level_equals_the_program_over_every_two_jobs() -> None:
    for chance, crowd in instances(2):
        whole = JobByJob(crowd)
        top = whole.top()
        demands = chance.choice([0.5, 1.0, 3.0], len(top)) * np.where(top > 0, top, 1.0)
        answer = shared_max_min(crowd, demands, water_filling=False)
        obeys(answer, crowd)
        if whole.size:
            assert answer.objective == pytest.approx(whole.level(np.where(top > 0, demands, 0.0)), rel=1e-6)
            filled = shared_max_min(crowd, demands)
            obeys(filled, crowd)
            assert filled.objective == pytest.approx(answer.objective, rel=1e-6)


def test_the_makespan_equals_the_program_over_every_two_jobs() -> None:
    for chance, crowd in instances(3):
        whole = JobByJob(crowd)
        top = whole.top()
        hours = chance.uniform(1, 50, len(top)) if chance.random() < 0.5 else chance.choice([1.0, 5.0], len(top))
        steps = hours * 3600 * np.where(top > 0, top, 1.0)
        answer = shared_makespan(crowd, steps)
        obeys(answer, crowd)
        if whole.size:
            # Steps in units of 3,600 at top speed keep the reference's numbers near 1.
            rate = whole.level(np.where(top > 0, steps / 3600, 0.0))
            assert answer.objective == pytest.approx(3600 / rate, rel=1e-6)
            assert answer.objective == pytest.approx((steps / np.maximum(answer.throughput, 1e-300))[top > 0].max())


def test_the_cost_ratio_equals_the_program_over_every_two_jobs() -> None:
    bought = 0
    for chance, crowd in instances(4):
        whole = JobByJob(crowd)
        top = whole.top()
        weights = chance.choice([0.5, 1.0], len(top)) / np.where(top > 0, top, 1.0)
        prices = chance.uniform(0.2, 4.0, len(crowd.capacity))
        floors = np.where(chance.random(len(top)) < 0.3, 0.2 * top, 0.0)
        # Floors all met, or the reference would have to give up the same ones.
        feasible = bool(whole.size) and whole.level(np.where(floors > 0, floors, 0.0)) >= 1 if floors.any() else True
        answer = shared_cheapest(crowd, prices, weights, floors if feasible else None)
        obeys(answer, crowd)
        if not whole.size:
            continue
        kept = floors * (1 - 1e-9) if feasible else np.zeros(len(top))
        gain, cost = whole.gain(weights), whole.cost(prices)
        assert whole.most(gain - answer.objective * (1 - 1e-6) * cost, floors=kept) >= -1e-12
        assert whole.most(gain - answer.objective * (1 + 1e-6) * cost, floors=kept) <= 1e-12
        bought += bool(kept.any())
    assert bought > 60


def levels_one_by_one(whole: JobByJob, demand: Floats) -> Floats:
    """Water filling to the letter: raise all that still rise, then ask for each alone whether it could go on."""
    made, rising = np.zeros(len(demand)), whole.top() > 0
    while rising.any():
        level = whole.level(np.where(rising, demand, 0.0), np.where(rising, 0.0, made) * (1 - 1e-10))
        made = np.where(rising, level * demand, made)
        for m in np.flatnonzero(rising):
            alone = np.zeros(len(demand))
            alone[m] = 1.0
            more = whole.most(whole.gain(alone), floors=made * (1 - 1e-10))
            if more <= made[m] * (1 + 1e-6):
                rising[m] = False
    return made


def test_every_level_equals_water_filling_to_the_letter() -> None:
    for chance, crowd in instances(5, 60):
        small = replace(crowd, kinds=crowd.kinds[:6])
        whole = JobByJob(small)
        if not whole.size:
            continue
        demands = chance.choice([1.0, 2.0], len(small.kinds)) * np.maximum(whole.top(), 1e-3)
        answer = shared_max_min(small, demands)
        obeys(answer, small)
        assert answer.throughput / demands == pytest.approx(levels_one_by_one(whole, demands) / demands, abs=1e-5)


def crowd_of(kinds: list[int], together: float, gpus: float = 1.0) -> JobClasses:
    """Jobs of one kind that make 1 step alone and ``together`` each when two share a GPU."""
    return JobClasses(
        np.array(kinds),
        np.ones((1, 1)),
        np.ones(1),
        np.array([gpus]),
        np.zeros((1, 2), np.intp),
        np.full((1, 2, 1), together),
    )


def test_two_on_one_gpu_share_it_all_the_time() -> None:
    # Taking turns makes 0.5 each, sharing 0.8 each; the GPU is paid for once, so a step costs 1 / 1.6.
    crowd = crowd_of([0, 0], 0.8)
    answer = shared_max_min(crowd, np.ones(2))
    assert answer.pairs.tolist() == [[0, 1]]
    assert answer.together.tolist() == [[1.0]]
    assert answer.objective == pytest.approx(0.8)
    assert shared_cheapest(crowd, np.ones(1)).objective == pytest.approx(1.6)
    assert shared_makespan(crowd, np.full(2, 8.0)).objective == pytest.approx(10.0)


def test_three_equals_meet_in_a_ring() -> None:
    # Pairs (0, 1), (1, 2), (2, 0) for a third of the time each: two thirds of 0.8 for everyone.
    answer = shared_max_min(crowd_of([0, 0, 0], 0.8), np.ones(3))
    assert answer.throughput == pytest.approx(np.full(3, 1.6 / 3))
    assert sorted(map(sorted, answer.pairs.tolist())) == [[0, 1], [0, 2], [1, 2]]
    assert answer.together == pytest.approx(np.full((3, 1), 1 / 3))


def test_no_job_is_paired_with_itself() -> None:
    answer = shared_throughput(crowd_of([0], 0.9))
    assert len(answer.pairs) == 0
    assert answer.throughput.tolist() == [1.0]


def test_groups_of_different_sizes_are_paired_evenly() -> None:
    # Two of kind 0 and three of kind 1 on one GPU, only unlike ones share. Shared all the time: each of the two has
    # half of it, each of the three a third, and 4 of the 6 possible pairs are enough for that.
    crowd = JobClasses(
        np.array([0, 0, 1, 1, 1]),
        np.ones((2, 1)),
        np.ones(2),
        np.ones(1),
        np.array([[1, 0]]),
        np.array([[[0.9], [0.7]]]),
    )
    answer = shared_throughput(crowd)
    obeys(answer, crowd)
    assert answer.throughput == pytest.approx([0.35, 0.35, 0.3, 0.3, 0.3])
    assert len(answer.pairs) == 4


def test_the_papers_pair_is_worth_no_more_than_taking_turns() -> None:
    # §3.1: (20.0, 7.5) beside 40 and 15 alone on a V100 is half and half.
    alone = np.array([[40.0, 20.0, 10.0], [15.0, 10.0, 5.0]])
    pair = np.array([[[20.0, 0.0, 0.0], [7.5, 0.0, 0.0]]])
    crowd = JobClasses(np.arange(2), alone, np.ones(2), np.array([1.0, 0.0, 0.0]), np.array([[0, 1]]), pair)
    answer = shared_max_min(crowd, np.array([40.0, 15.0]))
    assert answer.objective == pytest.approx(0.5)
    assert len(answer.pairs) == 0


def test_jobs_that_only_run_beside_another_are_served() -> None:
    crowd = JobClasses(
        np.arange(2), np.array([[0.0], [1.0]]), np.ones(2), np.ones(1), np.array([[0, 1]]), np.array([[[0.4], [0.3]]])
    )
    assert shared_max_min(crowd, np.ones(2)).throughput == pytest.approx([4 / 11, 4 / 11])


def test_without_pairs_it_is_the_plain_program() -> None:
    for chance, crowd in instances(6, 40):
        plain = without_pairs(crowd)
        weights = chance.uniform(0.5, 2.0, len(plain.kinds))
        alone = maximise_throughput(plain.speed[plain.kinds], plain.gangs[plain.kinds], plain.capacity, weights)
        assert shared_throughput(plain, weights).objective == pytest.approx(alone.objective, rel=1e-9)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_sharing_is_never_worse_than_not_sharing(seed: int) -> None:
    chance = np.random.default_rng(seed)
    crowd = random_crowd(chance, int(chance.integers(1, 26)))
    alone, ones = without_pairs(crowd), np.ones(len(crowd.kinds))
    prices = chance.uniform(0.2, 4.0, len(crowd.capacity))
    top = np.where(crowd.gangs[:, None] <= crowd.capacity, crowd.speed, 0.0).max(axis=1)[crowd.kinds]
    floors = np.where(chance.random(len(ones)) < 0.3, 0.3 * top, 0.0)
    able = (top > 0).all()
    pairs = [
        (shared_throughput(crowd), shared_throughput(alone)),
        (shared_cheapest(crowd, prices), shared_cheapest(alone, prices)),
    ]
    if able:  # else a pair can bring in a job that had no say in the level before
        pairs.append((shared_max_min(crowd, ones), shared_max_min(alone, ones)))
    for more, less in pairs:
        obeys(more, crowd)
        assert more.objective >= less.objective * (1 - 1e-9)
    with_floors, plain = shared_throughput(crowd, floors=floors), shared_throughput(alone, floors=floors)
    obeys(with_floors, crowd)
    if able:  # else what a shortfall is measured by, the top speed, may itself come from a pair
        assert (with_floors.shortfall / top).sum() <= (plain.shortfall / top).sum() + 1e-7


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 30))
def test_with_pairs_left_out_the_answer_still_holds(seed: int, most: int) -> None:
    chance = np.random.default_rng(seed)
    crowd = random_crowd(chance, int(chance.integers(1, 26)))
    demands = chance.uniform(0.5, 2.0, len(crowd.kinds))
    whole, alone = shared_max_min(crowd, demands), shared_max_min(without_pairs(crowd), demands)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crowds, "MOST_PAIRS", most)
        patch.setattr(crowds, "KEPT_PAIRS", most)
        some = shared_max_min(crowd, demands)
    obeys(some, crowd)
    assert not whole.restricted
    top = np.where(crowd.gangs[:, None] <= crowd.capacity, crowd.speed, 0.0).max(axis=1)[crowd.kinds]
    if (top > 0).all():  # else a pair can bring in a job that had no say in the level before
        assert alone.objective * (1 - 1e-9) <= some.objective <= whole.objective * (1 + 1e-9)


def test_many_unlike_jobs_keep_only_some_partners_and_say_so() -> None:
    chance = np.random.default_rng(7)
    count = 160
    speed = chance.uniform(1.0, 2.0, (count, 2))
    named = np.array([(a, b) for a in range(count) for b in range(a)])
    rates = speed[named] * chance.uniform(0.4, 0.9, (len(named), 2, 2))
    crowd = JobClasses(np.arange(count), speed, np.ones(count), np.full(2, 20.0), named, rates)
    answer = shared_max_min(crowd, np.ones(count), water_filling=False)
    obeys(answer, crowd)
    assert answer.restricted
    assert answer.objective > shared_max_min(without_pairs(crowd), np.ones(count), water_filling=False).objective * 1.1


GOOD = JobClasses(np.array([0, 1]), np.ones((2, 1)), np.ones(2), np.ones(1), np.array([[0, 1]]), np.ones((1, 2, 1)))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"pairs": np.array([[0, 2]])}, "pairs[0, 1]"),
        ({"pairs": np.array([[0, 1], [1, 0]]), "pair_speed": np.ones((2, 2, 1))}, "pairs"),
        ({"gangs": np.array([1.0, 2.0])}, "pairs[0]"),
        ({"gangs": np.array([1.0, -2.0])}, "gangs[1]"),
        ({"pair_speed": np.ones((1, 2, 3))}, "pair_speed"),
        ({"pair_speed": np.full((1, 2, 1), np.nan)}, "pair_speed[0, 0, 0]"),
        ({"kinds": np.array([0, 7])}, "kinds[1]"),
        ({"speed": np.ones((3, 1))}, "speed"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as refusal:
        replace(GOOD, **change)
    assert refusal.value.field == field


def test_bad_numbers_per_job_are_named() -> None:
    for wrong, field in ((np.array([1.0, 0.0]), "demands[1]"), (np.ones(3), "demands")):
        with pytest.raises(InputError) as refusal:
            shared_max_min(GOOD, wrong)
        assert refusal.value.field == field
    with pytest.raises(InputError, match=r"steps\[0\]"):
        shared_makespan(GOOD, np.array([0.0, 1.0]))


def test_nothing_to_share_out_is_an_answer_too() -> None:
    nobody = replace(GOOD, kinds=np.zeros(0, dtype=np.intp))
    no_room = replace(GOOD, capacity=np.zeros(1))
    for crowd in (nobody, no_room):
        ones = np.ones(len(crowd.kinds))
        for answer in (
            shared_throughput(crowd, ones, ones),
            shared_cheapest(crowd, np.ones(1)),
            shared_max_min(crowd, ones),
            shared_makespan(crowd, ones),
        ):
            assert (answer.status, answer.objective) == ("optimal", 0)
            assert not answer.alone.any()


def test_a_solver_that_gives_up_is_reported_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LpSession, "_run", lambda *_: False)
    for answer in (
        shared_throughput(GOOD, floors=np.full(2, 0.5)),
        shared_cheapest(GOOD, np.ones(1), floors=np.full(2, 0.5)),
        shared_max_min(GOOD, np.ones(2)),
        shared_makespan(GOOD, np.ones(2)),
    ):
        assert answer.status == "unsolved"
        assert not answer.alone.any()
        assert not answer.together.any()
