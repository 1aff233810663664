"""The real control plane, agents and keepers in virtual time: 2,000 faults, and proof that the simulation can fail."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.dst.breaks import BREAKS
from tests.dst.plan import FAULTS, KNOWN, Plan
from tests.dst.shrink import shrink
from tests.dst.trial import run_plan

FAULTS_IN_ALL, PARTS = 2000, 4

MOST_SEEDS = 40
"""Seeds within which a broken rule must be noticed."""


@pytest.mark.parametrize("part", range(PARTS))
def test_no_invariant_is_violated_by_two_thousand_faults(part: int) -> None:
    struck, seed = 0, 10_000 * part
    while struck < FAULTS_IN_ALL / PARTS:
        result = run_plan(Plan.of(seed))
        if result.violation is not None:
            pytest.fail(f"python -m tests.dst.soak --seed {seed}\n{shrink(result).story()}")
        struck, seed = struck + result.struck, seed + 1


def test_a_seed_replays_exactly() -> None:
    assert run_plan(Plan.of(7)).digest == run_plan(Plan.of(7)).digest
    assert run_plan(Plan.of(7)).digest != run_plan(Plan.of(8)).digest


def test_a_trial_confines_only_simulated_processes() -> None:
    # A real Landlock domain would hold for every later test in this process, and for all jobs that it starts.
    before = _no_new_privileges()
    run_plan(Plan.of(0))
    assert _no_new_privileges() == before


def _no_new_privileges() -> str:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(line for line in lines if line.startswith("NoNewPrivs"))


def test_every_kind_of_fault_is_drawn() -> None:
    drawn = {fault.kind for seed in range(60) for fault in Plan.of(seed).faults}
    assert drawn == FAULTS.keys() - KNOWN.keys()


@pytest.mark.parametrize("rule", BREAKS)
def test_a_broken_rule_is_noticed(rule: str) -> None:
    assert any(run_plan(Plan.of(seed), BREAKS[rule]()).violation for seed in range(MOST_SEEDS))


def test_a_failing_plan_shrinks_to_what_matters() -> None:
    names = BREAKS["charge twice"]()
    failed = next(result for seed in range(MOST_SEEDS) if (result := run_plan(Plan.of(seed), names)).violation)
    small = shrink(failed, lambda plan: run_plan(plan, names), most=40)
    assert small.violation is not None
    assert (small.plan.jobs, small.plan.faults) == ((), ())
    again = run_plan(replace(small.plan), names)
    assert (again.violation, again.digest) == (small.violation, small.digest)
