"""Whole rows, as the API sends them: jobs, details, nodes, tenants and accounts, with the sentences beside them."""

from dataclasses import replace
from math import inf
from time import localtime, strftime

import pytest
from tests.live.test_views import EPOCH, ON_BOTH, ON_FIRST, Scene, spec

from shoal.core import reasons
from shoal.core.commands import Start
from shoal.core.decision import Grant, Refusal
from shoal.core.events import (
    CancelRequested,
    JobCancelled,
    JobCompleted,
    JobCrashed,
    JobHeld,
    JobStarted,
    JobSubmitted,
    QuotaSet,
)
from shoal.core.job import Conditions, Launch
from shoal.core.quota import Quota
from shoal.core.reasons import Reason, in_words
from shoal.live.held_words import why_held
from shoal.live.time_words import ClockWords
from shoal.wire.messages import AcctRow, JobDetail, JobRow, Moment, NodeRow, StartForecast, TenantRow


def clock(seconds: float) -> str:
    return strftime("%H:%M:%S", localtime(EPOCH + seconds))


def minute(seconds: float) -> str:
    return clock(seconds).rpartition(":")[0]


def scene() -> Scene:
    """Ann's array runs on GPUs of both nodes, her second job waits, Bob's has completed after one restart."""
    first = spec("a", 3, conditions=Conditions(array="sweep"), priority=7, time=3600.0)
    made = Scene("gpu:2x2", first, spec("b", 1, "bob"), spec("c", 2), placed={0: ON_BOTH})
    made.accounts.apply_commands(30.0, [Start(1, 1, ON_FIRST)])
    made.events(40.0, JobStarted(40.0, 1, 1, 1.0, 0.0))
    made.events(50.0, JobCrashed(50.0, 1, 1, 0.0, True, "rank 0 died", failed=False, ran=10.0))
    made.accounts.apply_commands(60.0, [Start(1, 2, ON_FIRST)])
    made.events(70.0, JobCompleted(70.0, 1, 2, 200.0))
    return made


RUNNING = JobRow(
    id="a", name="name", tenant="ann", state="running", gpus_held=3, gpus_wanted=3, submitted=1000.0, started=1010.0,
    ended=None, done=90.0, work=200.0, kind="gpu", nodes=["gpu-0", "gpu-1"], reason="runs: it is first",
    position=None, start=None, end=StartForecast(110.0, 110.0, 110.0), array="sweep", priority=7, time=3600.0, bid=None,
)  # fmt: skip
WAITING = JobRow(
    id="c", name="name", tenant="ann", state="pending", gpus_held=0, gpus_wanted=2, submitted=1000.0, started=None,
    ended=None, done=0.0, work=200.0, kind=None, nodes=[], reason="waits: others are first", position=1,
    start=StartForecast(40.0, 30.0, 90.0), end=None, array=None, priority=0, time=None, bid=None,
)  # fmt: skip


def without_spread(row: JobRow) -> JobRow:
    """The row with only the median of its expected end, in whole seconds."""
    if row.end is None:
        return row
    return replace_row(row, StartForecast(*[float(round(row.end.median, -1))] * 3))


def replace_row(row: JobRow, end: StartForecast) -> JobRow:
    values = {name: getattr(row, name) for name in row.__struct_fields__}
    return JobRow(**{**values, "end": end})


def test_the_whole_rows_of_a_running_and_of_a_waiting_job() -> None:
    it = scene()
    last = it.last({"a": Grant(3, reason=in_words("runs: it is first"))})
    rows = it.rows(it.views(last, forecasts={"c": StartForecast(40.0, 30.0, 90.0)}))
    assert [without_spread(row) for row in rows] == [RUNNING, WAITING]


def test_the_whole_detail_of_a_job() -> None:
    it = scene()
    detail = it.views(it.last()).job(it.accounts.accounts[1], [(35.0, "runs: alone")])
    assert detail == JobDetail(
        job=detail.job, command=["train", "-x"], workdir="/w", ranks="gpu", grace=4.0, incarnation=2, restarts=1,
        crashes=1, gpu_seconds=2 * 20.0 + 2 * 10.0, rate=0.0, decision="completed", decided=1070.0, change="",
        story=[
            Moment(1000.0, "submitted by bob"),
            Moment(1030.0, "seated on gpu-0 (2 GPUs) as run 1", 1),
            Moment(1035.0, "runs: alone"),
            Moment(1040.0, "all ranks are up"),
            Moment(1050.0, "crashed: rank 0 died; the last 10 s of its run are lost"),
            Moment(1060.0, "seated on gpu-0 (2 GPUs) as run 2", 2),
            Moment(1070.0, "completed"),
        ],
        stop="", lost_gpu_seconds=20.0, exit_status=0, length="", engine=[], links=[],
    )  # fmt: skip


def test_the_whole_account_of_an_ended_job() -> None:
    it = scene()
    assert it.views().acct() == [
        AcctRow(
            id="b", name="name", tenant="bob", state="completed", gpus=1, submitted=1000.0, started=1030.0,
            ended=1070.0, waited=30.0, gpu_seconds=60.0, restarts=1, cause="",
        )
    ]  # fmt: skip


def test_the_whole_rows_of_nodes() -> None:
    """At t = 110 s with two GPUs a node: 160 GPU-seconds used on gpu-0, 200 on gpu-1."""
    it = scene()
    views = replace(it.views(it.last()), drained={1: "the fan; c waits"}, tenant="bob")
    held = {"gpus": 2, "kind": "gpu", "jobs": [], "held": {}, "suspended": []}
    assert views.nodes([50.0, None], it.held) == [
        NodeRow(name="gpu-0", rack="r0", up=True, used=1, heard=1050.0, drained="", recent_use=0.7273, **held),  # type: ignore[arg-type]
        NodeRow(
            name="gpu-1", rack="r0", up=True, used=2, heard=None, drained="the fan; another job waits",
            recent_use=0.9091, **held,  # type: ignore[arg-type]
        ),
    ]  # fmt: skip


def test_the_whole_rows_of_tenants_have_quotas_also_of_those_without_jobs() -> None:
    it = scene()
    it.events(105.0, QuotaSet(105.0, "ann", Quota(gpus=4)), QuotaSet(105.0, "cy", Quota(guaranteed=1)))
    ann = TenantRow(tenant="ann", live=2, held=3, gpu_seconds=300.0, part_now=1.0, part_ever=300 / 360, most=4,
                    guaranteed=0)  # fmt: skip
    assert it.views().share() == [
        ann,
        TenantRow(tenant="bob", live=0, held=0, gpu_seconds=60.0, part_now=0.0, part_ever=60 / 360, most=None,
                  guaranteed=0),
        TenantRow(tenant="cy", live=0, held=0, gpu_seconds=0.0, part_now=0.0, part_ever=0.0, most=None, guaranteed=1),
    ]  # fmt: skip
    assert [row.tenant for row in it.views(tenant="cy").share()] == ["cy", "others"]


REASONS = {
    "it is being cancelled": ((CancelRequested(100.0, 0, 130.0),), "a", f"cancelled, ends by {clock(130.0)}"),
    "it failed": (
        (JobCrashed(100.0, 0, 1, 0.0, True, "rank 0 died", failed=True, ran=5.0),), "a",
        "rank 0 died; not tried again, since it failed within 30 s of its start (--retries N has it tried)",
    ),
    "it was cancelled": ((JobCancelled(100.0, 2),), "c", "cancelled"),
    "it came after the decision": (
        (JobSubmitted(100.0, spec("d"), Launch("d", ())),), "d", "waits: it has just been submitted"
    ),
    "a person holds it": ((JobHeld(100.0, 2, "root"),), "c", f"waits: held by root since {clock(100.0)}"),
}  # fmt: skip


@pytest.mark.parametrize(("events", "id", "reason"), REASONS.values(), ids=REASONS.keys())
def test_why_a_job_is_where_it_is(events: tuple[object, ...], id: str, reason: str) -> None:
    it = scene()
    last = it.last()
    it.events(100.0, *events)
    (row,) = (row for row in it.rows(it.views(last), ended=True) if row.id == id)
    assert row.reason == reason


def held(conditions: Conditions | None, *events: object) -> str:
    it = Scene("gpu:2x2", *(spec(f"j{n}") for n in range(5)), spec("x", conditions=conditions), placed={})
    it.events(100.0, *events)
    return why_held(it.accounts.accounts[5], it.accounts, ClockWords(EPOCH, 110.0))


HELD = {
    "one job": (Conditions((("j0", "ok"),)), "waits for j0 to complete"),
    "jobs in different ways": (
        Conditions((("j0", "any"), ("j1", "notok"), ("j2", "start"))),
        "waits for j0 to end, j1 to fail, j2 to start",
    ),
    "more than three jobs": (
        Conditions(tuple((f"j{n}", "ok") for n in range(5))),
        "waits for j0 to complete, j1 to complete, j2 to complete and 2 more",
    ),
    "a job and a time": (
        Conditions((("j0", "ok"),), begin=170.0),
        f"waits for j0 to complete; it may start at {minute(170.0)} (in 60 s)",
    ),
    "a time alone": (Conditions(begin=170.0), f"waits: it may start at {minute(170.0)} (in 60 s)"),
    "a time that has come": (Conditions(begin=110.0), "waits: its conditions are being checked"),
    "its array": (
        Conditions(array="sweep", most_at_once=4),
        "waits: 4 jobs of the array sweep, the most at once, go first",
    ),
    "a job that is not there any more": (Conditions((("gone", "ok"),)), "waits: its conditions are being checked"),
}


@pytest.mark.parametrize(("conditions", "sentence"), HELD.values(), ids=HELD.keys())
def test_what_a_held_job_waits_for(conditions: Conditions, sentence: str) -> None:
    assert held(conditions) == sentence


def test_a_job_that_may_start_with_another_waits_until_that_one_is_seated() -> None:
    it = Scene("gpu:2x2", spec("x", conditions=Conditions((("y", "start"),))), spec("y"), placed={})
    words = ClockWords(EPOCH, 110.0)
    assert why_held(it.accounts.accounts[0], it.accounts, words) == "waits for y to start"
    it.accounts.apply_commands(100.0, [Start(1, 1, ON_FIRST)])
    assert why_held(it.accounts.accounts[0], it.accounts, words) == "waits: its conditions are being checked"


OWN = {
    reasons.TENANT_CAP: "it would start when a job of its tenant ends, or when an operator raises `shoal quota`",
    reasons.WIDER_THAN_CAP: "it would run on fewer GPUs (`shoal resize`), or when an operator raises `shoal quota`",
    reasons.RETURNED: "it would start when the other tenant no longer needs what is guaranteed to it",
    reasons.SET_ASIDE: "`shoal cancel` ends it; submit it again with other values",
}


@pytest.mark.parametrize(("template", "remedy"), OWN.items(), ids=[str(template.code) for template in OWN])
def test_what_would_let_a_job_run_that_free_gpus_do_not_help(template: reasons.ReasonTemplate, remedy: str) -> None:
    it = scene()
    last = it.last({"c": Refusal(Reason(template, (1,) * len(template.numbers)))})
    assert it.views(last).job(it.accounts.accounts[2], []).change == remedy


def test_a_remedy_names_nodes_that_are_drained_or_not_up_at_most_three_of_each() -> None:
    it = Scene("gpu:9x2", spec("a", 3), placed={}, down=(5, 6, 7, 8))
    drained = {n: f"fan {n}" for n in (3, 2, 1, 0)}
    views = replace(it.views(it.last()), drained=drained, engine_note=lambda name: f"slurm: {name} is down")
    assert views.job(it.accounts.accounts[0], []).change == (
        "10 GPUs are free, but jobs before it are to get them: no job runs there now; "
        "drained: gpu-0 (fan 0), gpu-1 (fan 1), gpu-2 (fan 2) and 1 more; "
        "not up: gpu-5 (slurm: gpu-5 is down), gpu-6 (slurm: gpu-6 is down), gpu-7 (slurm: gpu-7 is down) and 1 more"
    )
    views = replace(it.views(it.last()), drained={1: "a"}, engine_note=lambda name: "away" if name == "gpu-7" else "")
    assert views.job(it.accounts.accounts[0], []).change.endswith("; drained: gpu-1 (a); not up: gpu-7 (away)")


def test_a_job_without_declared_work_has_no_expected_end() -> None:
    it = Scene("gpu:2x2", spec("a", 2, work=None), placed={0: ON_FIRST})
    (row,) = it.rows(it.views(it.last()))
    assert (row.end, row.work) == (None, None)
    assert it.last().remedy(it.accounts.accounts[0], [], inf) == ""
