"""Gaps of Shockwave's windows by mix of gangs, as the page of the policy shows them."""

from shoal.research.repro.context import ReproContext
from shoal.research.repro.registry import reproductions


def test_windows_of_every_mix_of_gangs_are_within_a_thousandth_of_their_bound() -> None:
    (made,) = reproductions()["shockwave-windows"].tables(ReproContext(None, quick=True))
    assert len(made.rows) == 7
    for mix, worst, mean, *_ in made.rows:
        assert 0.0 <= float(mean or 0.0) <= float(worst or 0.0) < 0.001, mix
