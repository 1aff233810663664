"""The live backend without a ring: requests and their answers, agents and their leases, pieces of logs."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from tests.refusals import refusal

from shoal.core.commands import Start, Suspend
from shoal.core.events import (
    AppBid,
    EventBatch,
    HoldLifted,
    JobCancelled,
    JobCrashed,
    JobHeld,
    JobReleased,
    JobReshaped,
    JobResumed,
    NodeDrained,
    NodeLost,
    NodeResumed,
    NodeReturned,
    PriorityChanged,
    QuotaSet,
)
from shoal.core.job import JobSpec, Launch
from shoal.core.quota import Quota
from shoal.core.topology import Placement, parse_cluster
from shoal.live.accounts import Accounts
from shoal.live.backend import LiveBackend
from shoal.live.clock import IDLE_RECORD, WallClock
from shoal.live.job_verbs import JobVerbs
from shoal.live.journal_disk import JournalDisk
from shoal.live.log_reads import ForeignRead
from shoal.live.recovery import RecoveredRuns
from shoal.wire.messages import PROTOCOL, AgentOrders, AgentReport, Hello, LogAnswer, LogRead, PrioritiseMany, RunReport

LEASE = 5.0


@dataclass(slots=True)
class ManualClock:
    time: float = 0.0

    def now(self) -> float:
        return self.time


def backend(cluster: str = "gpu:2x2") -> tuple[LiveBackend, ManualClock]:
    """A backend whose agents have said hello, and its clock."""
    clock = ManualClock()
    it = LiveBackend(parse_cluster(cluster), clock, lambda spec, seats: 1.0, LEASE)
    for node in it.topology.nodes:
        it.hello(Hello(PROTOCOL, node.name, "boot", node.kind, node.gpus, "here"))
    it.wait(0.0)
    return it, clock


def sync(it: LiveBackend, node: str = "gpu-0", *runs: RunReport, logs: Sequence[LogAnswer] = ()) -> AgentOrders:
    return it.sync(AgentReport(protocol=PROTOCOL, node=node, boot="boot", known=0, runs=list(runs), logs=list(logs)))


def start(it: LiveBackend, grace: float) -> None:
    spec = JobSpec("job", 0.0, 1, 100.0, 1, 1)
    it.submit([(spec, Launch("job", ("train",), grace=grace))], "answer")
    it.wait(0.0)
    it.send([Start(0, 1, Placement(((0, 1),)))])


def test_a_silent_node_is_lost_after_lease_and_grace_and_two_seconds() -> None:
    it, clock = backend("gpu:1x2")
    start(it, grace=3.0)
    clock.time = 1.0
    sync(it, "gpu-0", RunReport(job=0, incarnation=1, phase="running"))
    it.wait(clock.time)
    clock.time = 1.0 + LEASE + 3.0 + 2.0 - 0.01
    assert it.wait(clock.time).events == ()
    clock.time += 0.01
    lost, crashed = it.wait(clock.time).events
    assert (lost, type(crashed)) == (NodeLost(clock.time, 0), JobCrashed)
    with refusal("boot: 'boot': not known, or its node counts as lost: register first"):
        sync(it)
    clock.time += 100.0
    assert it.wait(clock.time).events == (), "a node is lost once"
    it.hello(Hello(PROTOCOL, "gpu-0", "boot", "gpu", 2, "here"))
    assert it.wait(clock.time).events == (NodeReturned(clock.time, 0),)


def test_a_hello_again_of_the_same_boot_loses_nothing_and_of_another_all() -> None:
    it, _ = backend("gpu:1x2")
    start(it, grace=3.0)
    sync(it, "gpu-0", RunReport(job=0, incarnation=1, phase="running"))
    it.wait(0.0)
    assert it.last_report(0) == 0.0
    orders = it.hello(Hello(PROTOCOL, "gpu-0", "boot", "gpu", 2, "here"))
    assert ([order.incarnation for order in orders.runs], it.wait(0.0).events) == ([1], ())
    orders = it.hello(Hello(PROTOCOL, "gpu-0", "other", "gpu", 2, "here"))
    assert (orders.runs, [type(event) for event in it.wait(0.0).events]) == ([], [JobCrashed])
    assert it.last_report(0) is None


def test_every_change_of_orders_is_announced_and_nothing_else() -> None:
    it, _ = backend()
    changes: list[int] = []
    it.on_change = lambda: changes.append(it.generation("gpu-0"))
    before = it.generation("gpu-0")
    sync(it)
    it.send([])
    assert changes == []
    start(it, grace=1.0)
    assert (len(changes), it.generation("gpu-0") > before) == (1, True)
    sync(it, "gpu-0", RunReport(job=0, incarnation=1, phase="running"))
    assert len(changes) == 2, "it has started"
    sync(it, "gpu-0", RunReport(job=0, incarnation=1, phase="running"))
    assert len(changes) == 2
    it.cancel(0)
    assert len(changes) == 3
    sync(it, "gpu-0", RunReport(job=0, incarnation=1, phase="ended"))
    assert len(changes) == 4, "it has ended"
    it.wait(0.0)
    it.confirm()
    it.confirm()
    assert len(changes) == 5, "the end of a run is durable"


def test_a_request_is_answered_when_it_is_durable_and_not_before() -> None:
    it, _ = backend()
    first = it.submit([(JobSpec("job", 0.0, 1, 100.0, 1, 1), Launch("job", ()))], "answer")
    assert len(it.wait(0.0).events) == 1
    second = it.reshape(0, 2, 1, 2)
    it.confirm()
    assert (first.result(0), second.done()) == ("answer", False)
    assert it.wait(0.0).events == (JobReshaped(0.0, 0, 2, 1, 2),)
    it.confirm()
    assert second.done()
    third, fourth = it.bid("app", (0,), ((1, 2.0),)), it.cancel(0)
    assert it.wait(0.0).events == (AppBid(0.0, "app", (0,), ((1, 2.0),)), JobCancelled(0.0, 0))
    fourth.cancel()
    it.confirm()
    assert third.done()
    it.reshape(0, 1, 1, 1)
    assert it.wait(0.0).events == (), "a job that is over keeps its shape"


def test_requests_between_two_turns_of_the_loop_are_all_recorded_in_their_order(tmp_path: Path) -> None:
    it, clock = backend("gpu:1x2")
    accounts = Accounts(it.topology.nodes)
    it.submit([(JobSpec("job", 0.0, 1, 100.0, 1, 1), Launch("job", ("train",)))], "answer")
    accounts.apply_events(it.wait(0.0).events)
    account = accounts.live[0]
    account.held_by = "root"
    verbs = JobVerbs(it, accounts, threading.RLock(), JournalDisk(tmp_path / "journal"), lambda job, tenant: account)
    it.set_quota("ann", Quota(gpus=1))
    it.drain("gpu-0", "a fan", "root")
    it.resume_node("gpu-0")
    it.bid("app", (0,), ())
    verbs.hold("job", None, "root")
    verbs.release("job", None, "root")
    verbs.prioritise_many(PrioritiseMany(priority=4), None, "ann")
    it.reshape(0, 2, 1, 2)
    assert it.wait(clock.time).events == (
        QuotaSet(0.0, "ann", Quota(gpus=1)),
        NodeDrained(0.0, 0, "a fan", "root"),
        NodeResumed(0.0, 0),
        AppBid(0.0, "app", (0,), ()),
        JobHeld(0.0, 0, "root", True),
        HoldLifted(0.0, 0, "root"),
        JobReleased(0.0, 0),
        PriorityChanged(0.0, 0, 4, "ann"),
        JobReshaped(0.0, 0, 2, 1, 2),
    )


def test_when_the_loop_dies_every_request_is_answered_with_the_error() -> None:
    it, _ = backend()
    delivered, given_up, waiting = it.bid("a", (), ()), it.bid("a", (), ()), None
    given_up.cancel()
    it.wait(0.0)
    waiting = it.bid("b", (), ())
    it.fail(RuntimeError("dead"))
    for future in (delivered, waiting):
        with refusal("dead", RuntimeError):
            future.result(0)
    it.confirm()


def test_it_is_over_when_it_was_closed_and_nothing_is_left_to_tell() -> None:
    it, _ = backend()
    it.bid("a", (), ())
    it.close()
    first, second = it.wait(inf), it.wait(inf)
    assert ([len(batch.events) for batch in (first, second)], first.over, second.over) == ([1, 0], False, True)


def test_wait_sleeps_until_something_happens_and_no_longer_than_it_may() -> None:
    it = LiveBackend(parse_cluster("gpu:1x2"), WallClock(time.time()), lambda spec, seats: 1.0)
    begin = time.monotonic()
    batch = it.wait(it.clock.now() + 0.1)
    assert (batch.events, time.monotonic() - begin >= 0.1) == ((), True)
    timer = threading.Timer(0.1, lambda: it.hello(Hello(PROTOCOL, "gpu-0", "boot", "gpu", 2, "here")))
    timer.start()
    assert [type(event) for event in it.wait(inf).events] == [NodeReturned]
    timer.join()


def test_a_log_is_asked_for_until_it_is_answered_or_given_up() -> None:
    it, _ = backend()
    before = it.generation("gpu-1")
    first = it.read_log(1, LogRead(0, "job", 1, 0, 0, 10))
    second = it.read_log(1, LogRead(0, "job", 1, 1, 5, 10))
    assert it.generation("gpu-1") == before + 2
    assert sync(it, "gpu-0").reads == []
    assert sync(it, "gpu-1").reads == [LogRead(1, "job", 1, 0, 0, 10), LogRead(2, "job", 1, 1, 5, 10)]
    sync(it, "gpu-1", logs=[LogAnswer(1, 3, b"abc"), LogAnswer(9, 0, b"")])
    assert (first.result(0).data, second.done()) == (b"abc", False)
    it.forget_read(second)
    assert sync(it, "gpu-1").reads == []
    third = it.read_log(1, LogRead(0, "job", 1, 0, 0, 10))
    third.cancel()
    sync(it, "gpu-1", logs=[LogAnswer(3, 3, b"abc")])
    assert sync(it, "gpu-1").reads == []


def test_of_two_answers_to_one_log_request_in_a_report_the_first_counts() -> None:
    it, _ = backend()
    asked = it.read_log(1, LogRead(0, "job", 1, 0, 0, 10))
    sync(it, "gpu-1", logs=[LogAnswer(1, 3, b"abc"), LogAnswer(1, 3, b"def")])
    assert asked.result(0).data == b"abc"


def test_an_agent_cannot_answer_for_the_log_of_another_node() -> None:
    it, _ = backend()
    asked = it.read_log(1, LogRead(0, "job", 1, 0, 0, 10))
    with refusal("logs: 1: this piece of a log was not asked of gpu-0", ForeignRead):
        sync(it, "gpu-0", logs=[LogAnswer(1, 5, b"false")])
    assert not asked.done()
    sync(it, "gpu-1", logs=[LogAnswer(1, 4, b"true")])
    assert asked.result(0).data == b"true"


def test_orders_carry_the_lease_and_a_refused_agent_gets_the_reason() -> None:
    it, _ = backend()
    orders = sync(it)
    assert (orders.lease, orders.protocol, orders.generation) == (LEASE, PROTOCOL, it.generation("gpu-0"))
    report = AgentReport(protocol=PROTOCOL, node="gpu-0", boot="other", known=0, runs=[])
    with refusal("boot: 'other': not known, or its node counts as lost: register first"):
        it.sync(report)
    with refusal("node: 'gpu0': unknown; did you mean gpu-0 or gpu-1?"):
        it.generation("gpu0")


def test_an_idle_backend_returns_an_empty_batch_so_that_the_journal_shows_that_time_passed() -> None:
    clock = ManualClock()
    backend = LiveBackend(parse_cluster("gpu:1x2"), clock, lambda *_: 1.0)
    clock.time = IDLE_RECORD
    assert backend.wait(inf) == EventBatch(IDLE_RECORD, ())


def test_after_a_restart_an_agent_is_refused_elsewhere_only_if_its_place_is_known() -> None:
    for places, refused in (({}, False), ({0: "rack-7"}, False), ({0: "rack-8"}, True)):
        it = LiveBackend(parse_cluster("gpu:1x2"), ManualClock(), lambda *_: 1.0, LEASE)
        it.resume(RecoveredRuns(up={0: True}, places=places), frozenset())
        hello = Hello(PROTOCOL, "gpu-0", "boot", "gpu", 2, "here", place="rack-7")
        if refused:
            with refusal(
                "node: 'gpu-0': an agent of this name runs elsewhere: name another node, or stop that one and wait 7 s"
            ):
                it.hello(hello)
        else:
            it.hello(hello)
            assert it.wait(0.0).events == (() if places else (NodeReturned(0.0, 0, "rack-7"),))


def secret_on(it: LiveBackend, node: str, number: int) -> str:
    """The secret of a job's store in the orders of a node."""
    (run,) = (run for run in sync(it, node).runs if run.job == number)
    assert run.roster is not None
    return run.roster.secret


def test_the_workers_of_a_job_and_its_store_share_a_secret_that_no_other_job_has() -> None:
    it, _ = backend("gpu:2x2")
    again, _ = backend("gpu:2x2")
    again.store_key = it.store_key
    for each in (it, again):
        for number in (0, 1):
            spec = JobSpec(f"job-{number}", 0.0, 2, 100.0, 1, 2)
            each.submit([(spec, Launch("job", ("python",), in_place=True))], "answer")
            each.wait(0.0)
            each.send([Start(number, 1, Placement(((0, 1), (1, 1))))])
    found = {(node, number): secret_on(it, node, number) for node in ("gpu-0", "gpu-1") for number in (0, 1)}
    assert found["gpu-0", 0] == found["gpu-1", 0] == secret_on(again, "gpu-0", 0), "also after a restart with its key"
    assert found["gpu-0", 1] == found["gpu-1", 1] != found["gpu-0", 0]
    assert len(found["gpu-0", 0]) == 64


def test_the_nodes_of_a_batch_script_know_each_other_and_share_a_secret_of_the_run() -> None:
    it, _ = backend("gpu:2x2")
    for number, env in enumerate(((("SHOAL_SBATCH", "{}"),), ())):
        spec = JobSpec(f"job-{number}", 0.0, 2, 100.0, 2, 2)
        it.submit([(spec, Launch("job", ("bash",), env, ranks="node"))], "answer")
        it.wait(0.0)
        it.send([Start(number, 1, Placement(((0, 1), (1, 1))))])
    runs = {(node, run.job): run for node in ("gpu-0", "gpu-1") for run in sync(it, node).runs}
    assert runs["gpu-0", 0].hosts == runs["gpu-1", 0].hosts
    assert [gpus for _, gpus in runs["gpu-0", 0].hosts] == [1, 1]
    assert runs["gpu-0", 0].secret == runs["gpu-1", 0].secret
    assert len(runs["gpu-0", 0].secret) == 64
    assert (runs["gpu-0", 1].hosts, runs["gpu-0", 1].secret) == ([], "")


def test_of_two_agents_with_one_name_one_is_refused_and_restarts_are_not() -> None:
    it, _ = backend("gpu:1x2")

    def hello(boot: str) -> None:
        it.hello(Hello(PROTOCOL, "gpu-0", boot, "gpu", 2, f"host of {boot}"))

    for number in range(20):
        hello(f"restart {number}")
    for _ in range(3):
        hello("a")
        hello("b")
    with refusal("node: 'gpu-0': another agent of this name runs at host of b: stop one of them, or name another node"):
        hello("a")
    hello("b")
    hello("a restarted")


def test_an_order_to_suspend_a_run_that_is_resized_in_place_is_refused_at_once() -> None:
    it, _ = backend("gpu:1x2")
    it.submit([(JobSpec("job", 0.0, 1, 100.0, 1, 2), Launch("job", ("train",), in_place=True))], "answer")
    it.wait(0.0)
    it.send([Start(0, 1, Placement(((0, 1),)))])
    sync(it, "gpu-0", RunReport(job=0, incarnation=1, phase="running"))
    it.wait(0.0)
    it.send([Suspend(0, 1)])
    (resumed,) = it.wait(0.0).events
    assert isinstance(resumed, JobResumed)
    assert resumed.cause == "a job that is resized in place is not suspended"
