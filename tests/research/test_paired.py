"""Ratios of paired runs, and the verdicts drawn from them."""

from math import inf

import pytest

from shoal.report.compare import half_width
from shoal.research.repro.paired import PairedRatio, all_at_least, all_hold, all_within, paired_ratio, ratio_of
from shoal.research.repro.table import REPRODUCES


def test_a_ratio_is_the_geometric_mean_with_students_interval() -> None:
    found = paired_ratio([2.0, 8.0], [1.0, 2.0])
    assert found.mean == pytest.approx(8.0**0.5)
    assert found.low < 2.0
    assert found.high > 4.0
    same = ratio_of([3.0, 3.0, 3.0])
    assert (same.low, same.high) == pytest.approx((3.0, 3.0))


def test_one_seed_leaves_everything_open() -> None:
    assert half_width([1.0]) == inf
    assert ratio_of([2.0]).high == inf
    assert all_at_least("x", {"a": ratio_of([9.0])}, 2.0).startswith("cannot be told")


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        (PairedRatio(3.0, 2.5, 3.5), REPRODUCES),
        (PairedRatio(2.0, 1.5, 2.5), "cannot be told: x: 2.2 is within the interval: a 2.00 (1.50–2.50)"),
        (PairedRatio(1.5, 1.0, 2.0), "differs: x less than 2.2: a 1.50 (1.00–2.00)"),
    ],
)
def test_a_lower_limit_is_kept_broken_or_open(ratio: PairedRatio, verdict: str) -> None:
    assert all_at_least("x", {"a": ratio}, 2.2) == verdict


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        (PairedRatio(1.0, 0.98, 1.02), REPRODUCES),
        (PairedRatio(1.0, 0.9, 1.02), "cannot be told: intervals reach beyond 0.95 to 1.05: a 1.00 (0.90–1.02)"),
        (PairedRatio(1.2, 1.1, 1.3), "differs: outside 0.95 to 1.05: a 1.20 (1.10–1.30)"),
        (PairedRatio(0.8, 0.7, 0.9), "differs: outside 0.95 to 1.05: a 0.80 (0.70–0.90)"),
    ],
)
def test_a_range_is_kept_broken_or_open(ratio: PairedRatio, verdict: str) -> None:
    assert all_within({"a": ratio}, 0.95, 1.05) == verdict


def test_statements_that_do_not_hold_are_named() -> None:
    assert all_hold({"a": True, "b": True}) == REPRODUCES
    assert all_hold({"a": True, "b is best": False}) == "differs: does not hold: b is best"
