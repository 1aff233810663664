"""Verdicts on Themis's simulated figures, both ways."""

import pytest

from shoal.research.repro.paired import PairedRatio
from shoal.research.repro.table import REPRODUCES
from shoal.research.repro.themis_verdicts import by_errors, by_filters, by_leases, by_lies, by_mixes


def exactly(value: float) -> PairedRatio:
    return PairedRatio(value, value, value)


def test_a_mix_is_worst_and_baselines_are_within_the_papers_range() -> None:
    rho = {0.0: 1.0, 0.5: 1.2, 1.0: 1.1}
    assert by_mixes(rho, {"srtf": exactly(1.5)}, exactly(1.081), "ours") == REPRODUCES
    assert "highest with a mix" in by_mixes({0.0: 2.0, 0.5: 1.0, 1.0: 1.0}, {}, exactly(1.081), "ours")
    assert "with srtf (ours 3.00" in by_mixes(rho, {"srtf": exactly(3.0)}, exactly(1.081), "ours")
    assert "Gandiva's GPU time" in by_mixes(rho, {}, exactly(1.3), "ours")


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ([0.01, 0.02, 0.0], REPRODUCES),
        ([0.3, 0.31, 0.32], "differs: the worst ρ changes by +31.0% ± 2.5%, above 10.8%"),
        ([0.0, 0.2, 0.1], "cannot be told"),
    ],
)
def test_errors_are_judged_with_their_interval(changes: list[float], verdict: str) -> None:
    assert by_errors(changes).startswith(verdict)


def test_a_lie_must_not_pay_and_must_cost_beyond_the_tipping_point() -> None:
    none, sooner = {0.2: 0.01, 0.5: 0.01}, {0.2: 0.99, 0.5: 0.98}
    assert by_lies({0.2: 1.0, 0.5: 1.3}, none, sooner) == REPRODUCES
    assert "no lie pays" in by_lies({0.2: 0.9, 0.5: 1.3}, none, sooner)
    assert "loses much with 50%" in by_lies({0.2: 1.0, 0.5: 1.01}, none, sooner)
    assert "others are sooner" in by_lies({0.2: 1.0, 0.5: 1.3}, none, {0.2: 1.0, 0.5: 1.1})


def test_filters_and_leases_are_judged_by_their_directions() -> None:
    rho = {(0.0, 10): 2.0, (0.8, 10): 1.0, (1.0, 10): 1.5, (0.8, 5): 0.9, (0.8, 40): 1.2}
    assert by_filters(rho) == REPRODUCES
    assert "(ours 1.00)" in by_filters({**rho, (1.0, 10): 1.0})
    assert "shorter leases" in by_filters({**rho, (0.8, 5): 1.3})
    assert by_leases({(0.0, 10): 1.0, (1.0, 10): 1.1, (0.8, 40): 0.9, (0.8, 5): 1.0}) == REPRODUCES
    assert "longer leases" in by_leases({(0.0, 10): 1.0, (1.0, 10): 1.1, (0.8, 40): 1.1, (0.8, 5): 1.0})
