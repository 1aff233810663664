"""AFS's figures 7, 8 and 15: tables and verdicts from made-up runs, and a day of a trace."""

from dataclasses import replace

from shoal.policy.registry import parse_policy
from shoal.research.repro.afs_live import CASES, error_table, gain_table
from shoal.research.repro.afs_reconfiguration import (
    MODEL,
    RESTARTS,
    DayResult,
    busiest_days,
    day_of,
)
from shoal.research.repro.afs_reconfiguration import gain_table as day_table
from shoal.research.repro.fidelity import FidelityResult
from shoal.research.repro.table import REPRODUCES
from shoal.testing.builders import job
from shoal.workload.schema import Workload

RUN = FidelityResult("afs-p", 10.0, 30.0, 10.2, 30.0, 1, 1, 2, 0, 1.0, 1.0, 0.1)
LIVE = {case.policy: [replace(RUN, policy=case.policy, live_jct=20.0, simulated_jct=20.0)] * 2 for case in CASES}
LIVE["afs-p"] = [RUN, RUN]


def test_the_live_policies_are_known() -> None:
    assert [type(parse_policy(case.spec())).__name__ for case in CASES] == ["Tiresias", "Themis", "Optimus", "AfsP"]


def test_gains_over_each_policy_are_judged_by_their_intervals() -> None:
    made = gain_table(LIVE)
    assert made.verdict == REPRODUCES
    assert made.cells()[0][:4] == ["tiresias", "2.93–3.54", "20.0", "2.00 (2.00–2.00)"]
    slower = {**LIVE, "optimus": [replace(RUN, live_jct=9.0)] * 2}
    assert gain_table(slower).verdict == "differs: AFS-P's gain less than 1: over optimus 0.90 (0.90–0.90)"
    wide = {**LIVE, "optimus": [RUN, replace(RUN, live_jct=11.0)]}
    assert gain_table(wide).verdict.startswith("cannot be told: AFS-P's gain: 1 is within the interval: over optimus")


def test_the_simulators_error_is_compared_with_the_papers() -> None:
    assert error_table(LIVE).verdict == REPRODUCES
    off = {**LIVE, "afs-p": [replace(RUN, simulated_jct=12.0)] * 2}
    assert error_table(off).verdict == "differs: does not hold: afs-p's error is at most 5.2% (ours 20.0%)"


def test_a_day_holds_its_own_jobs_from_its_beginning_and_its_longest_of_the_model() -> None:
    jobs = (
        job("a", submitted=10.0),
        job("b", submitted=86_400.0 + 5.0, work=9.0, model=MODEL, batch_size=64),
        job("c", submitted=86_400.0 + 7.0, work=99.0, model=MODEL, batch_size=64),
        job("d", submitted=86_400.0 + 8.0, work=999.0, model="afs-vgg16", batch_size=256),
    )
    assert busiest_days(jobs, 5) == [1, 0]
    day, monitored = day_of(Workload("w", jobs), 1, None)
    assert [(one.id, one.submitted) for one in day.jobs] == [("b", 5.0), ("c", 7.0), ("d", 8.0)]
    assert monitored == "c"


def test_a_monitored_job_must_gain_on_every_day() -> None:
    fast, slow = [DayResult(100.0, 50.0, 9)] * 2, [DayResult(200.0, 75.0, 9)] * 2
    rows = [(rank, restart, slow, fast) for rank in (0, 1) for restart in RESTARTS]
    assert day_table(rows).verdict == REPRODUCES
    assert day_table(rows).cells()[0][2:4] == ["2.00 (2.00–2.00)", "1.50 (1.50–1.50)"]
    assert "outside 1.3 to 2.82: day 2 1.00" in day_table([*rows[:-1], (1, max(RESTARTS), fast, fast)]).verdict
