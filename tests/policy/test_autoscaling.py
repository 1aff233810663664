"""How many GPUs a job is worth renting: worked by hand on curves, and as properties of any report."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.decision import Floats
from shoal.core.goodput import GoodputReport, StepFit
from shoal.core.job import BatchLimits, BatchSetting, JobSpec
from shoal.policy.autoscaling import GoodputRule, Need, Offer, Rule, ThroughputRule, wanted

SIZES = np.array([1, 2, 4, 8, 12, 16])
NODE = 2
"""The place of one node of four GPUs."""


def rates(*each: float) -> Floats:
    """Of GPUs that do so much each."""
    return np.asarray(np.multiply(SIZES, each), np.float64)


STEPS: dict[str, tuple[Rule, Floats, int, int]] = {
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
}


@pytest.mark.parametrize("said", STEPS)
def test_a_step_on_a_curve(said: str) -> None:
    """A job that was on its way has its GPUs negated."""
    rule, curve, rented, expected = STEPS[said]
    at = SIZES.tolist().index(abs(rented))
    assert SIZES[rule.step(SIZES, curve, at, NODE, growing=rented < 0)] == expected


LIMITS = BatchLimits(128, 4096, 8, 512)
SPEC = JobSpec("a", 0.0, 4, None, 1, 64, model="cifar10", limits=LIMITS)


def report(noise: float, seen: int, network: float = 0.05, kind: str = "t4", compute: float = 0.001) -> GoodputReport:
    fit = StepFit((0.01, compute), (0.005, 0.001), (network, 0.002), (network, 0.002), 1.5, 256, seen, 1 + seen // 4)
    return GoodputReport(((kind, fit),), noise, 128, seen, BatchSetting(128))


OFFERS = (Offer("t4", 4, 16, 1.0),)


@given(
    noise=st.floats(0.0, 1e6),
    seen=st.integers(1, 64),
    rented=st.integers(0, 64),
    network=st.floats(0.0, 1.0),
    growing=st.booleans(),
    rule=st.sampled_from([GoodputRule(), GoodputRule(ideal="gpu"), ThroughputRule()]),
)
def test_no_more_than_was_tried_twice_and_never_less_than_before(
    noise: float, seen: int, rented: int, network: float, growing: bool, rule: Rule
) -> None:
    rented = rented if rented < 4 else rented // 4 * 4
    found = wanted(rule, Need(SPEC, report(noise, seen, network), rented, growing), OFFERS)
    assert found is not None
    kind, need = found
    assert kind == "t4"
    assert max(rented, 1) <= need.rented <= max(2 * seen, rented, 1)
    assert need.rented <= 64


def test_more_noise_is_worth_more_gpus() -> None:
    counts = []
    for noise in (100.0, 1000.0, 10000.0, 100000.0):
        found = wanted(GoodputRule(), Need(SPEC, report(noise, 32), 1), OFFERS)
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
        found = wanted(GoodputRule(), Need(SPEC, told, 4), (*OFFERS, Offer("a100", 4, 2, price)))
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
