"""How much room the house policy leaves: bounds that hold for what was measured."""

from pathlib import Path

import pytest

from shoal.research.repro.registry import chosen
from shoal.research.repro.setting import Kept, Setting

FILES = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def kept(policy: str, makespan: float, jct: float, rho: float) -> tuple[dict[str, object], dict[str, float]]:
    """A run of the 120-job trace in its own order, as `shockwave-9` would have kept it."""
    key: dict[str, object] = {"paper": "shockwave", "what": "compared", "trace": "120", "policy": policy, "case": 0}
    return key, {"makespan": makespan, "jct": jct, "rho": rho}


@pytest.mark.skipif(not FILES.exists(), reason="the public traces are not here")
def test_a_makespan_and_a_fairness_that_must_be_kept_leave_less_room() -> None:
    # What was measured in this order, rounded, so that only the bounds are made here; but srsf is made out to be less
    # fair than it is, so that it need not be beaten.
    runs = Kept()
    for key, value in (
        kept("shoal", 21_295.0, 7_377.0, 0.84),
        kept("shockwave", 21_539.4, 8_476.1, 1.047),
        kept("srtf", 30_995.2, 6_814.9, 1.032),
        kept("srsf", 31_862.8, 6_461.0, 2.2),
    ):
        runs.get(key, lambda value=value: value)  # type: ignore[misc]
    (made,) = chosen(["house-room"])[0].tables(Setting(FILES, quick=True, kept=runs))
    jobs, shoal, srtf, srsf, as_shoal, as_shockwave, and_fair = made.rows[0]
    assert (jobs, shoal, srtf, srsf) == ("120", 7_377.0, 6_814.9, None)
    assert isinstance(as_shoal, float)
    assert isinstance(as_shockwave, float)
    assert isinstance(and_fair, float)
    # The two policies that were measured are above what nobody can do; srsf, which ends later, is below it.
    assert 6_461.0 < as_shockwave < as_shoal < 7_377.0
    assert as_shockwave < and_fair < 8_476.1
