"""A job's story in its account: the sentence that each event and command leaves, the state after it, and its image."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from math import inf

import pytest
from tests.live.test_accounts import NODES, TWO_GPUS, accounts, only

from shoal.core.commands import Command, Decided, Resize, Resume, Start, Stop, Suspend
from shoal.core.events import (
    CancelRequested,
    Event,
    EventBatch,
    HoldLifted,
    JobCancelled,
    JobCompleted,
    JobCrashed,
    JobHeld,
    JobReleased,
    JobRequeued,
    JobReshaped,
    JobResumed,
    JobSaved,
    JobSetAside,
    JobStarted,
    JobStopped,
    JobSubmitted,
    JobSuspended,
    PriorityChanged,
    QuotaSet,
    TimeLimitReached,
)
from shoal.core.job import Conditions, JobSpec, Launch
from shoal.core.lifecycle import JobState
from shoal.core.quota import Quota
from shoal.core.topology import Placement
from shoal.live.accounts import Accounts
from shoal.live.live_image import encode_live, restore_live

UP = (Start(0, 1, TWO_GPUS), JobStarted(10.0, 0, 1, 2.0, 0.0))
SEATED, RUNS = "seated on n0 (2 GPUs) as run 1", "all ranks are up"
Step = Event | Command


def after(*steps: Step, in_place: bool = False, retries: int | None = 3, **more: object) -> Accounts:
    """The accounts after these steps of Ann's job, each command at the time of the event before it."""
    spec = JobSpec("job", 0.0, 2, 100.0, 1, 4, tenant="ann", **more)  # type: ignore[arg-type]
    launch = Launch("job", ("train",), key="k", in_place=in_place, retries=retries)
    found = accounts((5.0, [JobSubmitted(5.0, spec, launch)], []))
    for step in steps:
        if isinstance(step, Start | Resize | Stop | Suspend | Resume):
            found.fold(Decided(0, inf, (step,)))
        else:
            found.fold(EventBatch(step.at, (step,)))
    return found


def crash(at: float, cause: str = "rank 0 died", blamed: bool = True, **more: object) -> JobCrashed:
    return JobCrashed(at, 0, 1, 0.0, blamed, cause, **more)  # type: ignore[arg-type]


STORIES: dict[str, tuple[Callable[[], Accounts], list[str], JobState]] = {
    "it is seated and runs": (partial(after, *UP), [SEATED, RUNS], JobState.RUNNING),
    "on two nodes": (
        partial(after, Start(0, 1, Placement(((0, 2), (1, 1))))), ["seated on n0 (2 GPUs), n1 (1 GPU) as run 1"],
        JobState.STARTING,
    ),
    "it completes": (partial(after, *UP, JobCompleted(20.0, 0, 1, 100.0)),
    [SEATED, RUNS, "completed"], JobState.COMPLETED),
    "it is stopped and loses nothing to speak of": (
        partial(after, *UP, Stop(0, 1), JobStopped(30.0, 0, 1, 1234567.8, 1.9)),
        [SEATED, RUNS, "warned to save and stop", "stopped; 1.23457e+06 done and saved"], JobState.PENDING,
    ),
    "it is stopped and loses a second": (
        partial(after, *UP, Stop(0, 1), JobStopped(30.0, 0, 1, 8.5, 2.0)),
        [SEATED, RUNS, "warned to save and stop", "stopped; 8.5 done and saved; the last 1 s of its run are lost"],
        JobState.PENDING,
    ),
    "it is held while it is stopped": (
        partial(after, *UP, JobHeld(15.0, 0, "root"), Stop(0, 1), JobStopped(30.0, 0, 1, 0.0)),
        [SEATED, RUNS, "held by root", "warned to save and stop", "stopped; 0 done and saved"], JobState.HELD,
    ),
    "it is held and released": (
        partial(after, JobHeld(6.0, 0, "root"), HoldLifted(7.0, 0, "bo"), JobReleased(8.0, 0)),
        ["held by root", "released by bo", "may start"], JobState.PENDING,
    ),
    "it is put back into the queue": (
        partial(after, *UP, JobRequeued(20.0, 0, 1, "bo")),
        [SEATED, RUNS, "put back into the queue by bo: warned to save and stop"], JobState.STOPPING,
    ),
    "its priority and shape change": (
        partial(after, PriorityChanged(6.0, 0, 1234, "bo"), JobReshaped(7.0, 0, 3, 2, 4)),
        ["priority set to 1,234 by bo", "asked to run on 3 GPUs (at least 2, at most 4)"], JobState.PENDING,
    ),
    "the policy fails on it": (
        partial(after, JobSetAside(6.0, 0, "it raised KeyError", 66.0)),
        ["set aside: it raised KeyError"], JobState.PENDING
    ),
    "it is cancelled before it starts": (partial(after, JobCancelled(6.0, 0)), ["cancelled"], JobState.CANCELLED),
    "it is cancelled since another failed": (
        partial(after, JobCancelled(6.0, 0, "a failed")), ["cancelled: a failed"], JobState.CANCELLED
    ),
    "it is cancelled while it runs": (
        partial(after, *UP, CancelRequested(20.0, 0, 30.0), JobCancelled(25.0, 0)),
        [SEATED, RUNS, "cancelled; warned to save and stop", "ended, after it was cancelled"], JobState.CANCELLED,
    ),
    "it is cancelled by force": (
        partial(after, *UP, CancelRequested(20.0, 0, 20.0)), [SEATED, RUNS, "cancelled; killed"], JobState.CANCELLING,
    ),
    "it reaches its time limit": (
        partial(after, *UP, TimeLimitReached(3610.0, 0, 3600.0, 3620.0), JobCancelled(3615.0, 0, failed=True)),
        [SEATED, RUNS, "time limit of 60 min reached; warned to save and stop",
         "ended, after it reached its time limit"],
        JobState.FAILED,
    ),
    "it is cancelled after it reached its time limit": (
        partial(after, *UP, TimeLimitReached(3610.0, 0, 3600.0, 3620.0), CancelRequested(3611.0, 0, 3611.0)),
        [SEATED, RUNS, "time limit of 60 min reached; warned to save and stop", "time limit of 60 min reached; killed"],
        JobState.CANCELLING,
    ),
    "it is suspended and resumed": (
        partial(after, *UP, Suspend(0, 1), JobSuspended(12.0, 0, 1, 4.0, 2_500_000_000, 1.25), Resume(0, 1, TWO_GPUS),
              JobResumed(20.0, 0, 1, 2.0, 4.0, 0.5)),
        [SEATED, RUNS, "to be suspended in place, losing nothing",
         "suspended in 1.2 s; holds 2.5 GB of host memory", "to be resumed on n0 (2 GPUs)", "resumed in 0.5 s"],
        JobState.RUNNING,
    ),
    "it cannot be suspended": (
        partial(after, *UP, Suspend(0, 1), JobResumed(12.0, 0, 1, 2.0, 4.0, cause="no memory")),
        [SEATED, RUNS, "to be suspended in place, losing nothing", "could not be suspended: no memory"],
        JobState.RUNNING,
    ),
    "it cannot be resumed yet": (
        partial(after, *UP, Suspend(0, 1), JobSuspended(12.0, 0, 1, 4.0), Resume(0, 1, TWO_GPUS),
              JobSuspended(20.0, 0, 1, 4.0, cause="its GPUs are in use")),
        [SEATED, RUNS, "to be suspended in place, losing nothing", "suspended", "to be resumed on n0 (2 GPUs)",
         "not resumed yet: its GPUs are in use"],
        JobState.SUSPENDED,
    ),
    "it is resized by a restart": (
        partial(after, *UP, Resize(0, 2, Placement(((1, 1),)))), [SEATED, RUNS, "seated on n1 (1 GPU) as run 2"],
        JobState.STARTING,
    ),
    "it is resized in place": (
        partial(after, *UP, Resize(0, 2, Placement(((1, 1),))), in_place=True),
        [SEATED, RUNS, "resized in place, on n1 (1 GPU) as run 2"], JobState.STARTING,
    ),
    "it crashes and is tried again": (
        partial(after, *UP, crash(20.0, retry_in=30.0, ran=10.0), JobReleased(50.0, 0)),
        [SEATED, RUNS, "crashed: rank 0 died; the last 10 s of its run are lost; to be tried again in 30 s",
         "may be tried again"],
        JobState.PENDING,
    ),
    "its node is lost with work": (
        partial(after, *UP, JobSaved(12.0, 0, 1, 4.0, 1.0),
              JobCrashed(20.0, 0, 1, 4.0, False, "node n0 was lost", ran=10.0)),
        [SEATED, RUNS, "crashed: node n0 was lost; the last 8 s of its run are lost"], JobState.PENDING,
    ),
    "it crashes while it is held": (
        partial(after, *UP, JobHeld(15.0, 0, "root"), crash(20.0, "node n0 was lost", blamed=False)),
        [SEATED, RUNS, "held by root", "crashed: node n0 was lost; the last 10 s of its run are lost"], JobState.HELD,
    ),
    "a node could not start it": (
        partial(after, Start(0, 1, TWO_GPUS), crash(20.0, "no such program", failed_on=0, retry_in=5.0)),
        [SEATED, "could not start: no such program; to be tried again in 5 s"], JobState.HELD,
    ),
    "it crashes for the last time": (
        partial(after, *UP, crash(20.0, failed=True, status=3, ran=10.0), retries=0),
        [SEATED, RUNS, "crashed: rank 0 died; not tried again, since it crashed and has no retries"], JobState.FAILED,
    ),
    "it fails at once": (
        partial(after, *UP, crash(20.0, failed=True, status=3, ran=10.0), retries=None),
        [SEATED, RUNS, "crashed: rank 0 died; not tried again, since it failed within 30 s of its start "
         "(--retries N has it tried)"],
        JobState.FAILED,
    ),
    "the cause of a failed start is in the job itself": (
        partial(after, Start(0, 1, TWO_GPUS), crash(20.0, "no such program", failed_on=0, failed=True)),
        [SEATED, "could not start: no such program; not tried again, since the cause is in the job itself"],
        JobState.FAILED,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "story", "state"), STORIES.values(), ids=STORIES.keys())
def test_each_step_of_a_job_leaves_one_sentence(
    make: Callable[[], Accounts], story: list[str], state: JobState
) -> None:
    found = make()
    account = only(found)
    assert [what for _, what in account.history] == ["submitted by ann", *story]
    assert account.state is state
    assert (account.number in found.live, account.number in found.placed) == (state.live, account.placement is not None)


@pytest.mark.parametrize(("make", "story", "state"), STORIES.values(), ids=STORIES.keys())
def test_the_image_of_an_account_has_all_of_it(make: Callable[[], Accounts], story: list[str], state: JobState) -> None:
    found, restored = make(), Accounts(NODES)
    restore_live(restored, encode_live(found))
    known = only(found) if state.live else None
    for number, account in restored.accounts.items():
        assert known is not None
        for field in fields(account):
            assert (field.name, getattr(account, field.name)) == (field.name, getattr(known, field.name))
        assert restored.live[number] is account
        assert restored.keys == {("ann", "k"): "job"}
    assert len(restored.accounts) == state.live
    totals = ("ended_gpu_seconds", "lost_gpu_seconds", "restarts", "crashes", "completed", "submitted", "quotas", "now")
    for name in totals:
        assert (name, getattr(restored, name)) == (name, getattr(found, name))


def test_a_quota_is_kept_until_another_or_none_replaces_it() -> None:
    found = after(QuotaSet(6.0, "ann", Quota(gpus=2)), QuotaSet(7.0, "bo", Quota(queued=3)))
    assert found.quotas == {"ann": Quota(gpus=2), "bo": Quota(queued=3)}
    found.fold(EventBatch(8.0, (QuotaSet(8.0, "ann", Quota(gpus=4)),)))
    assert list(found.quotas.items()) == [("bo", Quota(queued=3)), ("ann", Quota(gpus=4))]
    found.fold(EventBatch(9.0, (QuotaSet(9.0, "bo", Quota()),)))
    assert found.quotas == {"ann": Quota(gpus=4)}


def test_a_job_with_conditions_is_held_until_its_earliest_start_and_by_its_tenant_if_it_was_submitted_so() -> None:
    waits = only(after(conditions=Conditions((("a", "ok"),), begin=70.0)))
    assert (waits.state, waits.held_until, waits.held_by, waits.held_since) == (JobState.HELD, 70.0, "", 0.0)
    held = only(after(conditions=Conditions((), None, True)))
    assert (held.state, held.held_until, held.held_by, held.held_since) == (JobState.HELD, inf, "ann", 5.0)
    free = only(after(conditions=Conditions((), None, False, "array")))
    assert (free.state, free.held_until) == (JobState.PENDING, inf)


@pytest.mark.parametrize(
    ("preemptible", "saved", "cost"),
    [
        ("yes", None, ""),
        ("no", None, "its owner declared that it must not be stopped to make room"),
        ("auto", None, "it has not saved yet and is not stopped to make room, which would lose 95 s of its run"),
        ("auto", JobSaved(60.0, 0, 1, 9.0, 20.0), "a stop would lose the last 60 s of its run"),
        ("auto", JobSaved(60.0, 0, 1, 9.0, 60.0, True), ""),
    ],
)
def test_what_a_stop_would_cost_a_running_job_and_no_other(preemptible: str, saved: Event | None, cost: str) -> None:
    found = after(*UP, *([saved] if saved is not None else []), preemptible=preemptible)
    assert only(found).stop_cost(100.0) == cost
    found.fold(Decided(0, inf, (Stop(0, 1),)))
    assert only(found).stop_cost(100.0) == ""
    assert only(after(preemptible=preemptible)).stop_cost(100.0) == ""
