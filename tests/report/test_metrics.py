from collections.abc import Callable

import numpy as np
import pytest

from shoal.core.commands import Resize, Start, Stop
from shoal.core.errors import JournalError
from shoal.core.events import (
    BatchChanged,
    JobCancelled,
    JobCompleted,
    JobCrashed,
    JobStarted,
    JobSubmitted,
    NodeLost,
)
from shoal.core.job import JobSpec
from shoal.core.lifecycle import JobState
from shoal.core.topology import Placement
from shoal.perf.catalog import Catalog
from shoal.perf.profile import MeasuredRate, TableProfile
from shoal.report.history import read_history
from shoal.report.metrics import job_table, summarize
from shoal.store.codec import EVENTS
from shoal.store.journal import MemoryJournal

NewJournal = Callable[..., MemoryJournal]
NewSpec = Callable[..., JobSpec]
Telling = Callable[[MemoryJournal], Callable[..., None]]


def test_rows_of_three_jobs_worked_by_hand(three_jobs: MemoryJournal) -> None:
    table = job_table(read_history(three_jobs.raw()))
    assert table.id == ["a", "b", "c"]
    assert table.tenant == ["default", "x", "x"]
    assert table.started.tolist() == [0.0, 10.0, 5.0]
    assert table.completed.tolist() == [10.0, 20.0, 22.0]
    assert table.jct.tolist() == [10.0, 20.0, 17.0]
    assert table.restarts.tolist() == [0, 0, 1]
    assert table.gpu_seconds.tolist() == [20.0, 40.0, 10.0]
    # b waits from 0 to 10; c from 8, when it is stopped, to 20.
    assert table.queueing.tolist() == [0.0, 10.0, 12.0]
    assert table.exclusive.tolist() == [10.0, 10.0, 5.0]


def test_the_four_fairnesses_worked_by_hand(three_jobs: MemoryJournal) -> None:
    rho = job_table(read_history(three_jobs.raw())).rho
    # Contention: three jobs on four GPUs is no contention, the factor is 1: 10/10, 20/10, 17/5.
    assert rho["contention"].tolist() == pytest.approx([1.0, 2.0, 3.4])
    # Shockwave: GPUs wanted are 6 until 5, 8 until 10, 6 until 20, 2 until 22.
    #   a lives 0–10:  (30 + 40) / 10 / 4          = 1.75   → 10 / 17.5
    #   b lives 0–20:  (30 + 40 + 60) / 20 / 4     = 1.625  → 20 / 16.25
    #   c lives 5–22:  (40 + 60 + 4) / 17 / 4      = 26/17  → 17 / (5 · 26/17)
    assert rho["shockwave"].tolist() == pytest.approx([10 / 17.5, 20 / 16.25, 289 / 130])
    # Themis: two apps live until 10, then one. N_avg: a 2, b (20 + 10) / 20, c (10 + 12) / 17.
    #   a alone takes 10. The app of b and c alone: b at full speed until 5 (5 left); then each has 2 GPUs, c at full
    #   speed is done at 10 after 5, b at half speed has 2.5 left then and is done at 12.5.
    assert rho["themis"].tolist() == pytest.approx([10 / (10 * 2), 20 / (12.5 * 1.5), 17 / (5 * 22 / 17)])
    # Isolated: until 5 a and b have 2 GPUs each, a at full speed (5 left), b at half (7.5 left); then three have 4/3
    # each: a and c at 2/3 are both done at 12.5, b at 1/3 has 5 left, and alone again is done at 17.5.
    assert rho["isolated"].tolist() == pytest.approx([10 / 12.5, 20 / 17.5, 17 / 7.5])


def test_summary_of_three_jobs_worked_by_hand(three_jobs: MemoryJournal) -> None:
    history = read_history(three_jobs.raw())
    summary = summarize(history, job_table(history), measured={"cpu_seconds": 0.5})
    assert (summary["policy"], summary["seed"], summary["workload"]) == ("by-hand", 7, "three")
    assert (summary["cluster"], summary["knowledge"]) == ("v100:1x4", "oracle")
    assert (summary["jobs"], summary["completed"], summary["restarts"], summary["decisions"]) == (3, 3, 1, 6)
    assert summary["avg_jct"] == pytest.approx(47 / 3)
    assert summary["median_jct"] == 17.0
    assert summary["p99_jct"] == pytest.approx(17 + 0.98 * 3)
    assert summary["makespan"] == 22.0
    # 20 + 40 + 10 GPU-seconds of 4 GPUs for 22 s; a GPU-second costs a tenth of a cent.
    assert summary["gpu_seconds"] == 70.0
    assert summary["utilization"] == pytest.approx(70 / 88)
    assert summary["cost"] == pytest.approx(0.07)
    assert summary["queueing"] == pytest.approx({"mean": 22 / 3, "p99": 10 + 0.98 * 2})
    assert summary["rho"]["contention"] == pytest.approx(
        {"mean": 6.4 / 3, "max": 3.4, "unfair_1.0": 2 / 3, "unfair_1.05": 2 / 3, "unfair_1.1": 2 / 3}
    )
    # Themis: 0.5, 1.067 and 2.627, so the middle one is unfair at 1.05 and fair at 1.1.
    assert [summary["rho"]["themis"][f"unfair_{limit}"] for limit in (1.0, 1.05, 1.1)] == pytest.approx(
        [2 / 3, 2 / 3, 1 / 3]
    )
    assert summary["cpu_seconds"] == 0.5


def test_rows_carry_every_fairness_and_nothing_that_json_lacks(three_jobs: MemoryJournal) -> None:
    row = job_table(read_history(three_jobs.raw())).rows()[0]
    assert {"id", "submitted", "started", "completed", "jct", "gpus", "restarts", "rho"} <= row.keys()
    assert row["rho"].keys() == {"themis", "isolated", "contention", "shockwave"}


def test_contention_counts_the_jobs_of_the_trace(new_journal: NewJournal, new_spec: NewSpec, telling: Telling) -> None:
    # Two jobs of 4 s on one GPU, one after the other: factor 2, so 4/8 and 8/8; alone half the GPU each would be done
    # at 8 together, so isolated says the same.
    journal = new_journal("v100:1x1")
    tell, seat = telling(journal), Placement(((0, 1),))
    specs = [new_spec(name, 0.0, 1, 4.0) for name in "ab"]
    tell(0.0, [JobSubmitted(0.0, s) for s in specs], [Start(0, 1, seat)])
    tell(4.0, [JobCompleted(4.0, 0, 1, 4.0)], [Start(1, 1, seat)])
    tell(8.0, [JobCompleted(8.0, 1, 1, 4.0)], [])
    rho = job_table(read_history(journal.raw())).rho
    assert rho["contention"].tolist() == [0.5, 1.0]
    assert rho["isolated"].tolist() == [0.5, 1.0]
    # Both want a GPU for the whole of the first job's life, and on average 1.5 for that of the second.
    assert rho["shockwave"].tolist() == pytest.approx([4 / 8, 8 / (4 * 1.5)])


TWO_KINDS = Catalog(
    {
        "net": TableProfile(
            {
                32: {"fast": (MeasuredRate(1, 10.0),), "slow": (MeasuredRate(1, 5.0),)},
                64: {"fast": (MeasuredRate(1, 20.0),), "slow": (MeasuredRate(1, 4.0),)},
            }
        )
    },
    {},
)


def test_exclusive_follows_the_batch_sizes_on_the_best_kind(
    new_journal: NewJournal, new_spec: NewSpec, telling: Telling
) -> None:
    # 100 samples, the batch size going from 32 to 64 after 40: 40/10 + 60/20 = 7 s on the fast kind. On 1/1 of a
    # cluster of one fast and three slow GPUs the mean rates are 6.25 and 8: 40/6.25 + 60/8 = 13.9 s.
    journal = new_journal("fast:1x1,slow:1x3")
    tell = telling(journal)
    job = new_spec("a", 0.0, 1, 999.0, model="net", batch_size=32)
    tell(0.0, [JobSubmitted(0.0, job)], [Start(0, 1, Placement(((1, 1),)))])
    tell(8.0, [JobStarted(0.0, 0, 1, 5.0, 0.0), BatchChanged(8.0, 0, 1, 4.0, 40.0, 64)], [])
    tell(23.0, [JobCompleted(23.0, 0, 1, 100.0)], [])
    table = job_table(read_history(journal.raw()), TWO_KINDS)
    assert table.exclusive.tolist() == pytest.approx([7.0])
    assert table.rho["isolated"].tolist() == pytest.approx([23 / 13.9])
    assert table.rho["shockwave"].tolist() == pytest.approx([23 / 7])


def test_a_change_of_batch_size_undone_by_a_crash_counts_once(
    new_journal: NewJournal, new_spec: NewSpec, telling: Telling
) -> None:
    journal = new_journal("fast:1x1")
    tell, seat = telling(journal), Placement(((0, 1),))
    tell(0.0, [JobSubmitted(0.0, new_spec("a", 0.0, 1, 100.0, model="net", batch_size=32))], [Start(0, 1, seat)])
    changed = BatchChanged(4.0, 0, 1, 20.0, 40.0, 64)
    tell(5.0, [changed, JobCrashed(5.0, 0, 1, 30.0, True, "it crashed")], [Start(0, 2, seat)])
    tell(6.0, [BatchChanged(6.0, 0, 2, 20.0, 40.0, 64)], [])
    tell(9.0, [JobCompleted(9.0, 0, 2, 100.0)], [])
    history = read_history(journal.raw())
    assert history.trajectories == {0: [(40.0, 64)]}
    assert job_table(history, TWO_KINDS).exclusive.tolist() == pytest.approx([7.0])


def test_a_shared_gpu_is_in_use_and_paid_for_once(new_journal: NewJournal, new_spec: NewSpec, telling: Telling) -> None:
    # Both hold the same 2 GPUs from 0 to 6, then b alone to 10, when it ends: 20 GPU-seconds in use, 12 + 20 held.
    journal = new_journal("v100:1x2", {"v100": 3600.0})
    tell, seats = telling(journal), Placement(((0, 2),))
    specs = [new_spec(name, 0.0, 2, 10.0) for name in "ab"]
    both = [Start(0, 1, seats, None, 1), Start(1, 1, seats, None, 0)]
    tell(0.0, [JobSubmitted(0.0, s) for s in specs], both)
    tell(6.0, [JobCompleted(6.0, 0, 1, 3.0)], [])
    tell(10.0, [JobCompleted(10.0, 1, 1, 7.0)], [])
    history = read_history(journal.raw())
    summary = summarize(history, job_table(history))
    assert summary["gpu_seconds"] == 32.0
    assert (summary["utilization"], summary["cost"]) == (1.0, 20.0)


def test_late_events_of_an_earlier_incarnation_are_ignored(
    new_journal: NewJournal, new_spec: NewSpec, telling: Telling
) -> None:
    journal = new_journal("v100:1x2")
    tell = telling(journal)
    tell(0.0, [JobSubmitted(0.0, new_spec("a", 0.0, 1, 10.0))], [Start(0, 1, Placement(((0, 1),)))])
    tell(2.0, [], [Resize(0, 2, Placement(((0, 2),)))])
    tell(3.0, [JobCompleted(3.0, 0, 1, 10.0), JobCrashed(3.0, 0, 1, 0.0, True, "late")], [])
    tell(6.0, [JobCompleted(6.0, 0, 2, 10.0), JobCancelled(6.0, 0)], [])
    table = job_table(read_history(journal.raw()))
    assert (table.completed.tolist(), table.gpu_seconds.tolist(), table.restarts.tolist()) == ([6.0], [10.0], [1])


def test_jobs_that_never_completed_have_no_completion_and_no_fairness(
    new_journal: NewJournal, new_spec: NewSpec, telling: Telling
) -> None:
    # a is cancelled while waiting, b crashes five times and is given up, c is too large and waits to the end, d runs
    # when the journal ends at 10.
    journal = new_journal("v100:1x2")
    tell, seat = telling(journal), Placement(((0, 1),))
    wants = (1, 1, 3, 1)
    specs = [new_spec(name, 0.0, gpus, 100.0) for name, gpus in zip("abcd", wants, strict=True)]
    tell(0.0, [JobSubmitted(0.0, s) for s in specs], [Start(3, 1, seat)])
    tell(1.0, [JobCancelled(1.0, 0), NodeLost(1.0, 0)], [Start(1, 1, seat)])
    for life in range(1, 6):
        again = [Start(1, life + 1, seat)] if life < 5 else []
        tell(1.0 + life, [JobCrashed(1.0 + life, 1, life, 0.0, True, "bug")], again)
    tell(10.0, [], [])
    history = read_history(journal.raw())
    outcomes = [JobState.CANCELLED, JobState.FAILED, JobState.PENDING, JobState.PENDING]
    assert history.outcome.tolist() == outcomes
    table = job_table(history)
    assert table.queueing.tolist() == [1.0, 1.0, 10.0, 0.0]
    assert table.gpu_seconds.tolist() == [0.0, 5.0, 0.0, 10.0]
    assert all(np.isnan(rho).all() for rho in table.rho.values())
    assert table.rows()[0]["jct"] is None
    summary = summarize(history, table)
    assert (summary["completed"], summary["avg_jct"], summary["utilization"]) == (0, None, None)
    assert summary["rho"]["isolated"]["max"] is None


def test_utilization_stays_within_one_when_jobs_hold_gpus_after_the_last_completion(
    new_journal: NewJournal, new_spec: NewSpec, telling: Telling
) -> None:
    # a completes at 5, b holds the other GPU until the journal ends at 100: of 2 GPUs for 5 s both were busy.
    journal = new_journal("v100:1x2")
    tell, seat = telling(journal), Placement(((0, 1),))
    starts = [Start(0, 1, seat), Start(1, 1, seat)]
    tell(0.0, [JobSubmitted(0.0, new_spec(name, 0.0, 1, 5.0)) for name in "ab"], starts)
    tell(5.0, [JobCompleted(5.0, 0, 1, 5.0)], [])
    tell(100.0, [], [Stop(1, 1)])
    history = read_history(journal.raw())
    assert summarize(history, job_table(history))["utilization"] == 1.0


def test_an_empty_run_has_a_summary_without_figures(new_journal: NewJournal) -> None:
    history = read_history(new_journal("v100:1x2").raw())
    summary = summarize(history, job_table(history))
    assert (summary["jobs"], summary["avg_jct"], summary["gpu_seconds"]) == (0, None, 0.0)


@pytest.mark.parametrize("event", ["text", [0], [99, 1.0], 7, [1, 0.0, 5, 1, 1.0, 0.0]])
def test_a_journal_with_something_else_in_place_of_an_event_is_refused(new_journal: NewJournal, event: object) -> None:
    records = [*new_journal("v100:1x2").raw(), [EVENTS, 1.0, [event]]]
    with pytest.raises(JournalError, match="record 2 is not one of a journal that this Shoal reads"):
        read_history(records)


def test_a_journal_without_header_or_cluster_is_refused() -> None:
    with pytest.raises(JournalError, match="header"):
        read_history(iter(()))
    with pytest.raises(JournalError, match="cluster_nodes"):
        read_history(MemoryJournal.begin({"policy": "fifo"}).raw())
