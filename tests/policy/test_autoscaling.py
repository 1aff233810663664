"""How many GPUs a job is worth renting: worked by hand on curves, and as properties of any report."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.arrays import Floats
from shoal.core.batch_limits import BatchLimits
from shoal.core.goodput import GoodputReport, StepFit
from shoal.core.job import BatchSetting, JobSpec
from shoal.policy.pollux.autoscaling import (
    GoodputRule,
    Need,
    NodeOffer,
    RentRule,
    ScalingCurve,
    ThroughputRule,
    ValueRule,
    wanted,
)

SIZES = np.array([1, 2, 4, 8, 12, 16])
NODE_GPUS = 4


def rates(*each: float) -> Floats:
    """Of GPUs that do so much each."""
    return np.asarray(np.multiply(SIZES, each), np.float64)


STEPS: dict[str, tuple[RentRule, Floats, int, int]] = {
    "GPUs that do more than two thirds of a node's are worth more, until they do about half": (
        GoodputRule(),
        rates(1.2, 1.1, 1.0, 0.7, 0.55, 0.4),
        8,
        12,
    ),
    "GPUs that do two thirds or less stay": (GoodputRule(), rates(1.2, 1.1, 1.0, 0.66, 0.5, 0.4), 8, 8),
    "unless they were on their way": (GoodputRule(), rates(1.2, 1.1, 1.0, 0.66, 0.5, 0.4), -8, 12),
    "beside one GPU alone a node's four may already do too little": (
        GoodputRule(ideal="gpu"),
        rates(1.0, 0.8, 0.6, 0.5, 0.4, 0.3),
        4,
        4,
    ),
    "perfect scaling takes all there is": (GoodputRule(), rates(1, 1, 1, 1, 1, 1), 1, 16),
    "throughput takes more while a further GPU gains a tenth": (
        ThroughputRule(),
        rates(1.0, 1.0, 0.9, 0.8, 0.55, 0.4),
        1,
        8,
    ),
    "and goes on where it gains more than that": (ThroughputRule(), rates(1.0, 1.0, 0.9, 0.8, 0.6, 0.5), 1, 16),
    "where waiting is worth nothing, the GPUs that do most each": (
        ValueRule(hour=0.0),
        rates(0.5, 0.6, 1.0, 0.9, 0.8, 0.7),
        1,
        4,
    ),
    "an hour of waiting that is worth two node-hours is saved with a third node, not with a fourth": (
        ValueRule(hour=2.0),  # (12 + 8) / 8.4 = 2.38 beside (8 + 8) / 6.4 = 2.5 and (16 + 8) / 9.6 = 2.5
        rates(1.0, 1.0, 0.9, 0.8, 0.7, 0.6),
        1,
        12,
    ),
    "and one worth twenty with the fourth": (ValueRule(hour=20.0), rates(1.0, 1.0, 0.9, 0.8, 0.7, 0.6), 1, 16),
}


@pytest.mark.parametrize("said", STEPS)
def test_a_step_on_a_curve(said: str) -> None:
    """A job that was on its way has its GPUs negated."""
    rule, curve, rented, expected = STEPS[said]
    at = SIZES.tolist().index(abs(rented))
    assert SIZES[rule.step(ScalingCurve(SIZES, curve, at, NODE_GPUS, growing=rented < 0))] == expected


CONCAVE = st.lists(st.floats(0.01, 1.0), min_size=6, max_size=6).map(
    lambda gains: np.cumsum(np.sort(gains)[::-1] * np.diff(SIZES, prepend=0))
)


@given(curve=CONCAVE, at=st.integers(0, 5), hour=st.floats(0.0, 50.0))
def test_by_value_rent_and_waiting_together_are_least_for_a_useful_sample(curve: Floats, at: int, hour: float) -> None:
    chosen = ValueRule(hour).step(ScalingCurve(SIZES, curve, at, NODE_GPUS))
    each = (SIZES + hour * NODE_GPUS) / curve
    assert chosen >= at
    assert each[chosen] == each[at:].min()


@given(
    epochs=st.lists(st.tuples(st.floats(1.0, 100.0), CONCAVE), min_size=1, max_size=6),
    hour=st.floats(0.1, 50.0),
    other=st.lists(st.integers(0, 5), min_size=6, max_size=6),
)
def test_by_value_no_schedule_as_early_rents_for_less(
    epochs: list[tuple[float, Floats]], hour: float, other: list[int]
) -> None:
    """Of all schedules, whatever they know of the epochs to come; as long as changes are free in both directions."""

    def took(places: list[int]) -> tuple[float, float]:
        hours = [work / curve[place] for (work, curve), place in zip(epochs, places, strict=True)]
        return sum(hours), sum(h * SIZES[place] for h, place in zip(hours, places, strict=True))

    ours = took([ValueRule(hour).step(ScalingCurve(SIZES, curve, 0, NODE_GPUS)) for _, curve in epochs])
    theirs = took(other[: len(epochs)])
    assert theirs[0] > ours[0] or theirs[1] >= ours[1] * (1.0 - 1e-9)


def test_a_change_pays_for_its_restart_and_for_booting_over_as_long_as_the_job_has_been_there() -> None:
    curve = rates(1.0, 1.0, 1.0, 0.75, 0.5, 0.4)  # at hour=1 two nodes cost (8 + 4)/6 and one (4 + 4)/4: the same
    for hour, age, expected in ((1.0, inf, 4), (1.1, 100.0, 4), (1.1, 3600.0, 8), (1.1, 0.0, 4)):
        job = ScalingCurve(SIZES, curve, 2, NODE_GPUS, age=age)
        assert SIZES[ValueRule(hour).step(job)] == expected
        assert SIZES[ValueRule(hour).step(replace(job, growing=True))] == (4 if hour == 1.0 else 8)
    assert SIZES[ValueRule(1.1).step(ScalingCurve(SIZES, curve, 2, NODE_GPUS, age=3600.0, boot=120.0))] == 4


LIMITS = BatchLimits(128, 4096, 8, 512)
SPEC = JobSpec("a", 0.0, 4, None, 1, 64, model="cifar10", limits=LIMITS)


def report(noise: float, seen: int, network: float = 0.05, kind: str = "t4", compute: float = 0.001) -> GoodputReport:
    fit = StepFit((0.01, compute), (0.005, 0.001), (network, 0.002), (network, 0.002), 1.5, 256, seen, 1 + seen // 4)
    return GoodputReport(((kind, fit),), noise, 128, seen, BatchSetting(128))


OFFERS = (NodeOffer("t4", 4, 16, 1.0),)


@given(
    noise=st.floats(0.0, 1e6),
    seen=st.integers(1, 64),
    rented=st.integers(0, 64),
    network=st.floats(0.0, 1.0),
    growing=st.booleans(),
    rule=st.sampled_from([GoodputRule(), GoodputRule(ideal="gpu"), ThroughputRule(), ValueRule()]),
)
def test_no_more_than_was_tried_twice_and_never_less_than_before(
    noise: float, seen: int, rented: int, network: float, growing: bool, rule: RentRule
) -> None:
    rented = rented if rented < 4 else rented // 4 * 4
    found = wanted(rule, Need(SPEC, report(noise, seen, network), rented, growing), OFFERS)
    assert found is not None
    kind, need = found
    assert kind == "t4"
    assert max(rented, 1) <= need.rented <= max(2 * seen, rented, 1)
    assert need.rented <= 64


@pytest.mark.parametrize("rule", [GoodputRule(), ValueRule()])
def test_more_noise_is_worth_more_gpus(rule: RentRule) -> None:
    counts = []
    for noise in (100.0, 1000.0, 10000.0, 100000.0):
        found = wanted(rule, Need(SPEC, report(noise, 32), 1), OFFERS)
        assert found is not None
        counts.append(found[1].rented)
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_a_job_that_grows_by_doublings_goes_on_to_where_it_was_going() -> None:
    need, seen = Need(SPEC, report(1e5, 1)), 1
    held: list[int] = []
    while not held or need.growing:
        found = wanted(GoodputRule(), replace(need, report=report(1e5, seen)), OFFERS)
        assert found is not None
        need = found[1]
        seen = need.rented
        held.append(need.rented)
    direct = wanted(GoodputRule(), Need(SPEC, report(1e5, 64)), OFFERS)
    assert direct is not None
    assert held[:3] == [2, 4, 8]
    assert held[-1] == direct[1].rented > 16


def test_the_kind_that_does_most_for_its_price_is_rented() -> None:
    told = replace(report(1e4, 4), fits=(*report(1e4, 4).fits, *report(1e4, 4, kind="a100", compute=0.0005).fits))
    for price, kind in ((1.5, "a100"), (4.0, "t4")):
        found = wanted(GoodputRule(), Need(SPEC, told, 4), (*OFFERS, NodeOffer("a100", 4, 2, price)))
        assert found is not None
        assert found[0] == kind


def test_jobs_that_report_nothing_get_what_they_ask_for_or_can_begin_with() -> None:
    fixed = JobSpec("b", 0.0, 6, None, 6, 6)
    assert wanted(GoodputRule(), Need(fixed), OFFERS) == ("t4", Need(fixed, rented=6))
    assert wanted(GoodputRule(), Need(SPEC), OFFERS) == ("t4", Need(SPEC, rented=1))
    assert wanted(GoodputRule(), Need(replace(fixed, gpus=65)), OFFERS) is None
    assert wanted(GoodputRule(), Need(replace(fixed, kinds=("v100",))), OFFERS) is None


@pytest.mark.parametrize("bad", [{"above": 1.5}, {"to": 0.0}, {"above": 0.4, "to": 0.5}, {"ideal": "rack"}])
def test_rules_that_make_no_sense_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        GoodputRule(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [{"hour": -1.0}, {"hour": inf}, {"restart": float("nan")}])
def test_values_that_make_no_sense_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        ValueRule(**bad)
