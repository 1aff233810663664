"""Hold, release, requeue, priority and cancelling many, on a control plane whose agents the test plays."""

import time
from pathlib import Path

import pytest
from tests.live.test_control_plane import job, obey, opened, soon, state, submit, sync
from tests.refusals import refusal

from shoal.live.control_plane import ControlPlane, UnknownJob
from shoal.live.home import JOURNAL
from shoal.scenario.replay import replay_file
from shoal.wire.messages import CancelMany, Dependency, PrioritiseMany, RunReport, SignalRequest


def reason(plane: ControlPlane, id: str) -> str:
    return plane.job(id, None).job.reason


def stopped(plane: ControlPlane, node: str) -> None:
    """As an agent that has ended the runs it was told to stop."""
    soon(lambda: any(run.phase == "stop" for run in sync(plane, node, []).runs))
    runs = [run for run in sync(plane, node, []).runs if run.phase == "stop"]
    sync(plane, node, [RunReport(job=r.job, incarnation=r.incarnation, phase="ended") for r in runs])


def test_a_held_job_waits_until_it_is_released_and_names_its_holder(tmp_path: Path) -> None:
    with opened(tmp_path, "gpu:1x1") as plane:
        [id] = submit(plane, job(hold=True))
        soon(lambda: state(plane, id) == "held")
        assert reason(plane, id).startswith("waits: held by ann since ")
        assert plane.job(id, None).change == "`shoal release` lets it start"
        assert sync(plane, "gpu-0", []).runs == []
        plane.verbs.release(id, "ann", "ann").result(20)
        obey(plane, "gpu-0")
        soon(lambda: state(plane, id) == "running")
        with refusal(f"job: {id!r}: is not held; `shoal why` says what it waits for"):
            plane.verbs.release(id, None, "root")
        story = [moment.what for moment in plane.job(id, None).story]
        assert {"released by ann", "may start"} <= set(story)
    assert replay_file(tmp_path / "home" / JOURNAL)[0].decisions > 0


def test_what_an_administrator_holds_its_owner_cannot_release_also_after_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path, "gpu:1x1") as plane:
        [id] = submit(plane, job(hold=True))
        soon(lambda: state(plane, id) == "held")
        plane.verbs.hold(id, None, "root").result(20)  # over the owner's own hold
        assert plane.job(id, "ann").change == "an administrator's `shoal release` lets it start"
        assert plane.job(id, None).change == "`shoal release` lets it start"
    with opened(tmp_path, "gpu:1x1") as plane:
        with refusal(f"job: {id!r}: is held by the administrator root: ask them to release it"):
            plane.verbs.release(id, "ann", "ann")
        plane.verbs.release(id, None, "root").result(20)
        plane.verbs.hold(id, "ann", "ann").result(20)
        plane.verbs.release(id, "ann", "ann").result(20)
        obey(plane, "gpu-0")
        soon(lambda: state(plane, id) == "running")


def test_a_running_job_that_is_held_goes_on_and_is_not_started_again_once_it_stops(tmp_path: Path) -> None:
    with opened(tmp_path, "gpu:1x1") as plane:
        [id] = submit(plane, job())
        obey(plane, "gpu-0")
        soon(lambda: state(plane, id) == "running")
        plane.verbs.hold(id, None, "root").result(20)
        assert state(plane, id) == "running"
        assert "; held by root since " in reason(plane, id)
        assert reason(plane, id).endswith(": it does not start again once it stops until `shoal release`")
        plane.verbs.requeue(id, None, "root").result(20)
        stopped(plane, "gpu-0")
        soon(lambda: state(plane, id) == "held")
        with refusal(f"job: {id!r}: does not run (held); only running jobs can be put back"):
            plane.verbs.requeue(id, None, "root")
    with opened(tmp_path, "gpu:1x1") as plane:  # the hold outlives the control plane
        assert reason(plane, id).startswith("waits: held by root since ")
        plane.verbs.release(id, None, "root").result(20)
        assert obey(plane, "gpu-0")[0].incarnation == 2
        soon(lambda: state(plane, id) == "running")
    assert replay_file(tmp_path / "home" / JOURNAL)[0].decisions > 0


def test_a_job_that_is_put_back_into_the_queue_starts_again(tmp_path: Path) -> None:
    with opened(tmp_path, "gpu:1x1") as plane:
        [id] = submit(plane, job())
        obey(plane, "gpu-0")
        soon(lambda: state(plane, id) == "running")
        plane.verbs.requeue(id, "ann", "ann").result(20)
        soon(lambda: state(plane, id) == "stopping")
        stopped(plane, "gpu-0")
        soon(lambda: [run.incarnation for run in sync(plane, "gpu-0", []).runs] == [2])
        assert "put back into the queue by ann: warned to save and stop" in [m.what for m in plane.job(id, None).story]


def test_a_job_waits_for_another_and_starts_or_is_cancelled_with_the_cause(tmp_path: Path) -> None:
    with opened(tmp_path, "gpu:1x1") as plane:
        after = [Dependency("a")]
        first, second, third = submit(
            plane, job("a"), job("b", after=after), job("c", after=[Dependency("a", "notok")])
        )
        soon(lambda: state(plane, second) == "held")
        assert reason(plane, second) == f"waits for {first} to complete"
        assert reason(plane, third) == f"waits for {first} to fail"
    with opened(tmp_path, "gpu:1x1") as plane:  # what it waits for outlives the control plane
        obey(plane, "gpu-0", statuses=(0,))
        soon(lambda: state(plane, third) == "cancelled")
        assert reason(plane, third) == f"{first} completed, and this job was to start only if it failed"
        soon(lambda: [run.id for run in sync(plane, "gpu-0", []).runs if run.phase != "stop"] == [second])
        with refusal(f"after: {first!r}: has completed, and this job would start only after it failed"):
            submit(plane, job(after=[Dependency(first, "notok")]))
        [fourth] = submit(plane, job(after=[Dependency(first)]))
        soon(lambda: state(plane, fourth) == "pending")
    assert replay_file(tmp_path / "home" / JOURNAL)[0].decisions > 0


def test_a_user_cannot_wait_for_another_tenants_job_nor_for_none(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        [hers] = submit(plane, job())
        for id in (hers, "none-aaaa"):
            with refusal(f"after: {id!r}: there is no such job; name the id of a job submitted before"):
                plane.submit([job(after=[Dependency(id)])], "bo", "bo")


def test_a_singleton_waits_for_every_earlier_job_of_its_name_and_tenant(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        [one] = submit(plane, job("nightly"))
        two, three = submit(plane, job("nightly", singleton=True), job("nightly", singleton=True))
        submit(plane, job("nightly"), tenant="bo")
        soon(lambda: state(plane, three) == "held")
        assert reason(plane, two) == f"waits for {one} to end"
        assert reason(plane, three) == f"waits for {one} to end, {two} to end"


def test_a_job_with_an_earliest_start_says_when_and_starts_then(tmp_path: Path) -> None:
    with opened(tmp_path, "gpu:1x1") as plane:
        late, soon_id = submit(plane, job(begin=time.time() + 7200), job(begin=time.time() + 0.3))
        soon(lambda: state(plane, late) == "held")
        assert reason(plane, late).startswith("waits: it may start at ")
        assert reason(plane, late).endswith(" (in 120 min)")
        soon(lambda: [run.id for run in sync(plane, "gpu-0", []).runs] == [soon_id])
        assert state(plane, late) == "held"


def test_a_run_is_stopped_at_its_time_limit_and_the_job_fails_with_that_cause(tmp_path: Path) -> None:
    with opened(tmp_path, "gpu:1x1") as plane:
        signal = SignalRequest("USR1", 5.0)
        [id, after] = submit(plane, job("a", time=0.2, signal=signal), job("b", after=[Dependency("a", "notok")]))
        [order] = obey(plane, "gpu-0")
        assert (order.time, order.signal and order.signal.number) == (0.2, 10)
        soon(lambda: state(plane, id) == "cancelling")
        assert "time limit of 0.2 s reached, ends by " in reason(plane, id)
        assert state(plane, after) == "held"
    with opened(tmp_path, "gpu:1x1") as plane:
        stopped(plane, "gpu-0")
        soon(lambda: state(plane, id) == "failed")
        assert reason(plane, id) == "time limit of 0.2 s reached"
        soon(lambda: [run.id for run in sync(plane, "gpu-0", []).runs if run.phase != "stop"] == [after])
    assert replay_file(tmp_path / "home" / JOURNAL)[0].decisions > 0


def test_a_time_limit_holds_over_a_restart_of_the_control_plane(tmp_path: Path) -> None:
    with opened(tmp_path, "gpu:1x1") as plane:
        [id] = submit(plane, job("a", time=0.5))
        orders = obey(plane, "gpu-0")
        soon(lambda: state(plane, id) == "running")
    with opened(tmp_path, "gpu:1x1") as plane:
        sync(plane, "gpu-0", [RunReport(job=o.job, incarnation=o.incarnation, phase="running") for o in orders])
        soon(lambda: state(plane, id) == "cancelling")


def test_the_priority_of_a_job_changes_which_starts_next(tmp_path: Path) -> None:
    with opened(tmp_path, "gpu:1x1") as plane:
        running, first, second = submit(plane, job(), job(), job())
        obey(plane, "gpu-0")
        plane.verbs.prioritise(second, 4, "ann", "ann").result(20)
        assert plane.job(second, None).job.priority == 4
        obey(plane, "gpu-0", statuses=(0,))
        soon(lambda: [run.id for run in sync(plane, "gpu-0", []).runs if run.phase != "stop"] == [second])
        assert "starts first" in reason(plane, first)
        assert state(plane, running) == "completed"


def test_the_priority_of_all_jobs_of_a_name_changes_which_start_next(tmp_path: Path) -> None:
    with opened(tmp_path, "gpu:1x1") as plane:
        _, first, *sweep = submit(plane, job(), job("a"), job("sweep"), job("sweep"))
        (his,) = submit(plane, job("sweep"), tenant="bo")
        obey(plane, "gpu-0")
        ids, durable = plane.verbs.prioritise_many(PrioritiseMany(priority=4, name="sweep"), "ann", "ann")
        durable.result(20)
        assert ids == sweep
        assert [plane.job(id, None).job.priority for id in (first, *sweep, his)] == [0, 4, 4, 0]
        assert "priority set to 4 by ann" in [moment.what for moment in plane.job(sweep[1], None).story]
        obey(plane, "gpu-0", statuses=(0,))
        soon(lambda: [run.id for run in sync(plane, "gpu-0", []).runs if run.phase != "stop"] == sweep[:1])
        assert "starts first" in reason(plane, first)
        ids, durable = plane.verbs.prioritise_many(PrioritiseMany(priority=0, tenant="ann"), None, "root")
        durable.result(20)
        assert ids == [first, *sweep]
        assert plane.job(sweep[1], None).job.priority == 0
    assert replay_file(tmp_path / "home" / JOURNAL)[0].decisions > 0


def test_many_jobs_are_cancelled_by_name_array_state_and_owner(tmp_path: Path) -> None:
    with opened(tmp_path, "gpu:1x1") as plane:
        a, b = submit(plane, job("a"), job("b", array="sweep"))
        his, array = submit(plane, job("a"), job("c", array="sweep"), tenant="bo")
        obey(plane, "gpu-0")
        soon(lambda: state(plane, a) == "running")

        def cancelled(asks: str | None, **which: object) -> list[str]:
            ids, durable = plane.verbs.cancel_many(CancelMany(**which), asks)  # type: ignore[arg-type]
            durable.result(20)
            return ids

        assert cancelled("bo", name="b") == []
        assert cancelled("ann", array="sweep") == [b]
        assert cancelled(None, state="pending", tenant="bo", name="a") == [his]
        assert cancelled("ann", state="pending") == []
        assert cancelled(None) == [a, array]
        assert cancelled(None) == [], "what is being cancelled is not cancelled again"


def test_what_cannot_be_is_refused_with_the_field(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        for wanted, sentence in (
            (job(signal=SignalRequest("USR1")), "signal: 'USR1': needs time, the limit that it warns of"),
            (
                job(time=60.0, signal=SignalRequest("NOPE")),
                "signal: 'NOPE': unknown; did you mean FPE or STOP or PIPE?",
            ),
            (job(most_at_once=2), "most_at_once: 2: needs array, the name that the jobs share"),
        ):
            with refusal(sentence):
                plane.submit([wanted], "ann")
        twice = job("c", after=[Dependency("twin")])
        with refusal("jobs[2].after: 'twin': names 2 jobs of this request; give each its own name"):
            plane.submit([job("twin"), job("twin"), twice], "ann")
        [id] = submit(plane, job())
        for verb in (plane.verbs.hold, plane.verbs.release, plane.verbs.requeue):
            with pytest.raises(UnknownJob):
                verb(id, "bo", "bo")
        plane.cancel(id, None).result(20)
        with refusal(f"job: {id!r}: is being cancelled"):
            plane.verbs.hold(id, None, "root")
