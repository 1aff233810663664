"""When a batch of events calls for a decision: at the review, after an urgent event, or when a run has stopped."""

from math import inf
from typing import get_args

import numpy as np
import pytest

from shoal.core.events import (
    Event,
    EventBatch,
    JobMeasured,
    JobProfiled,
    JobStarted,
    JobStopped,
    JobSubmitted,
    JobSuspended,
)
from shoal.core.goodput import GoodputReport
from shoal.core.job import BatchSetting
from shoal.core.reasons import FITS, NO_ROOM, STOPPING
from shoal.testing.builders import job

NOTHING = np.empty(0, dtype=np.uint8)
WAITS_FOR_A_STOP = np.array([FITS.code, STOPPING.code], dtype=np.uint8)
WAITS_OTHERWISE = np.array([FITS.code, NO_ROOM.code], dtype=np.uint8)
STARTED, STOPPED = JobStarted(5.0, 0, 1, 1.0, 0.0), JobStopped(5.0, 0, 1, 3.0)
REPORT = GoodputReport((), 1.0, 32, 1, BatchSetting(32))


@pytest.mark.parametrize(("review_at", "due"), [(4.0, True), (5.0, True), (5.001, False), (inf, False)])
def test_a_decision_is_due_at_the_review_and_not_before(review_at: float, due: bool) -> None:
    assert EventBatch(5.0, (STARTED,)).calls_for_decision(review_at, NOTHING) is due
    assert EventBatch(5.0, ()).calls_for_decision(review_at, NOTHING) is due


def test_a_stopped_run_calls_for_a_decision_only_if_a_job_waits_for_it() -> None:
    batch = EventBatch(5.0, (STARTED, STOPPED))
    assert batch.calls_for_decision(inf, WAITS_FOR_A_STOP)
    assert not batch.calls_for_decision(inf, WAITS_OTHERWISE)
    assert not batch.calls_for_decision(inf, NOTHING)
    assert not EventBatch(5.0, (STARTED,)).calls_for_decision(inf, WAITS_FOR_A_STOP)


def test_one_urgent_event_among_others_calls_for_a_decision() -> None:
    submitted = JobSubmitted(5.0, job("a").spec())
    assert EventBatch(5.0, (STARTED, submitted)).calls_for_decision(inf, NOTHING)


def test_a_goodput_report_calls_for_a_decision_only_if_it_is_urgent() -> None:
    for urgent in (True, False):
        profiled = JobProfiled(5.0, 0, 1, 1.0, 2.0, REPORT, urgent=urgent)
        assert EventBatch(5.0, (profiled,)).calls_for_decision(inf, NOTHING) is urgent


def test_which_events_are_urgent() -> None:
    fixed = {kind.__name__ for kind in get_args(Event) if kind not in (JobProfiled, JobSuspended) and kind.urgent}
    assert fixed == {
        *("JobSubmitted", "BatchChanged", "JobCompleted", "JobCrashed", "JobReleased", "JobReshaped", "JobCancelled"),
        *("NodeLost", "NodeReturned", "NodeDrained", "NodeResumed", "JobSetAside", "QuotaSet", "PolicyOverran"),
        *("JobHeld", "JobRequeued", "PriorityChanged", "NodeJoined", "NodeRemoved"),
    }
    assert not JobMeasured.urgent
