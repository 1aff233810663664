"""Short trials, one for each seed: small enough for the mutation run, which judges a change by few seconds of tests."""

from dataclasses import replace

import pytest
from tests.dst.plan import Plan
from tests.dst.trial import run_plan


def short(seed: int) -> Plan:
    """The plan of a seed with at most eight jobs and twelve faults, in segments of at most 100 records."""
    plan = Plan.of(seed, jobs=8)
    return replace(plan, faults=plan.faults[::5][:12], segment=min(plan.segment, 100))


@pytest.mark.parametrize("seed", range(12))
def test_no_invariant_is_violated_in_a_short_trial(seed: int) -> None:
    result = run_plan(short(seed))
    assert result.violation is None, result.story()
