"""The whole order that an agent gets for its part of a run, and the secret that the parts of a run share."""

from dataclasses import replace

import msgspec
import pytest
from tests.live.test_runs import BOTH, NODES, ONE, run, running

from shoal.core.batch_limits import BatchLimits
from shoal.core.commands import Resize, Start
from shoal.core.job import BatchSetting, JobSpec, Launch, WarningSignal
from shoal.core.topology import Placement, parse_cluster
from shoal.live.backend import LiveBackend
from shoal.live.runs import RunRegistry
from shoal.wire.batch_script import OPTIONS_VARIABLE
from shoal.wire.messages import PROTOCOL, AgentReport, Hello, Roster, RunOrder, RunReport, SessionReport

LIMITS, SIGNAL = BatchLimits(8, 64, 1, 8), WarningSignal(10, 5.0, True)
LAUNCH = Launch(
    "job", ("python", "t.py"), (("A", "1"),), "/w", grace=7.0, cpus=3, memory=2**30, retries=2, signal=SIGNAL,
    code="c" * 64, terminal=True,
)  # fmt: skip
SPEC = JobSpec("job-1", 0.0, 3, 100.0, 1, 4, tenant="ann", limits=LIMITS, time=3600.0)
FIRST = RunOrder(
    job=0, incarnation=1, phase="prepare", id="job-1", command=["python", "t.py"], env={"A": "1"}, workdir="/w",
    ranks="gpu", grace=7.0, gpus=2, shared_with=None, node_rank=0, nodes=2, first_rank=0, local_ranks=2, world=3,
    master="10.0.0.0", port=0, work=100.0, batch=BatchSetting(16, 2), limits=LIMITS, roster=None, tenant="ann",
    cpus=3, memory=2**30, time=3600.0, signal=SIGNAL, turn=0, code="c" * 64, terminal=True, gate=False, yields=False,
)  # fmt: skip
SECOND = msgspec.structs.replace(FIRST, gpus=1, node_rank=1, first_rank=2, local_ranks=1)


def started(placement: Placement = BOTH, partner: int | None = None, **launch: object) -> RunRegistry:
    """Two nodes that have answered, and one job that is seated."""
    it = RunRegistry(NODES, lambda spec, placement: float(placement.gpus))
    for index, agent in enumerate(it.agents):
        agent.up, it.agents.nodes[index].up, agent.address = True, True, f"10.0.0.{index}"
        it.report(index, [], 0.0)
    it.submit(SPEC, replace(LAUNCH, **launch), 0.0)  # type: ignore[arg-type]
    it.carry_out(Start(0, 1, placement, BatchSetting(16, 2), partner), 1.0)
    return it


def changed(order: RunOrder, **fields: object) -> RunOrder:
    return msgspec.structs.replace(order, **fields)


def test_each_node_gets_the_whole_launch_its_ranks_and_the_address_of_the_first() -> None:
    it = started()
    assert (it.orders(0), it.orders(1)) == ([FIRST], [SECOND])
    it.report(0, [run("ready", port=99)], 2.0)
    it.report(1, [run("ready", port=98)], 2.0)
    assert it.orders(0) == [changed(FIRST, phase="go", port=99)]
    assert it.orders(1) == [changed(SECOND, phase="go", port=99)]
    it.cancel(0, 3.0)
    assert it.orders(1) == [changed(SECOND, phase="stop", port=99)]
    it.cancel(0, 4.0, force=True)
    assert it.orders(1) == [changed(SECOND, phase="stop", port=99, grace=0.0)]


def test_a_job_with_a_rank_on_each_node_has_one_rank_there_with_all_its_gpus() -> None:
    it = started(ranks="node")
    assert it.orders(0) == [changed(FIRST, ranks="node", local_ranks=1, world=2)]
    assert it.orders(1) == [changed(SECOND, ranks="node", first_rank=1, world=2)]


def test_on_one_node_one_order_prepares_and_starts_the_ranks_and_names_whom_they_share_with() -> None:
    alone = changed(FIRST, phase="go", nodes=1, world=2)
    assert started(ONE).orders(0) == [alone]
    assert started(ONE, partner=7).orders(0) == [changed(alone, shared_with=7)]


def test_a_batch_script_gets_the_address_and_the_gpus_of_each_node() -> None:
    it = started(env=((OPTIONS_VARIABLE, "-n 3"),))
    hosts = [("10.0.0.0", 2), ("10.0.0.1", 1)]
    assert it.orders(1) == [changed(SECOND, env={OPTIONS_VARIABLE: "-n 3"}, hosts=hosts)]


def test_a_job_that_waits_at_the_gate_is_told_so_on_one_node_and_without_a_terminal() -> None:
    for placement, terminal, gate in ((ONE, False, True), (BOTH, False, False), (ONE, True, False)):
        it = started(placement, terminal=terminal)
        reported = run("running", session=SessionReport(gate=True))
        it.report(0, [reported], 2.0)
        it.carry_out(Resize(0, 2, placement), 3.0)
        assert [order.gate for order in it.orders(0)] == [False, gate]


def test_the_parts_of_a_run_resized_in_place_share_a_roster() -> None:
    it = running(ONE, in_place=True)
    (order,) = it.orders(0)
    assert order.roster == Roster(origin=1, keeps_store=True, generation=1, members=[0, 1])
    it.carry_out(Resize(0, 2, BOTH), 3.0)
    old, new = it.orders(0)[0], it.orders(1)[0]
    assert old.roster == Roster(origin=1, keeps_store=True, generation=1, members=[0, 1])
    assert new.roster == Roster(origin=1, keeps_store=False, generation=0, members=[])
    assert (new.incarnation, new.gpus, new.first_rank, new.local_ranks, new.phase) == (2, 1, 2, 1, "go")
    it.report(1, [run("running", incarnation=2)], 4.0)
    for node, keeps in ((0, True), (1, False)):
        roster = it.orders(node)[0].roster
        assert roster == Roster(origin=1, keeps_store=keeps, generation=2, members=[0, 1, 2])


class Still:
    def now(self) -> float:
        return 3.0


def backend(**fields: object) -> LiveBackend:
    it = LiveBackend(parse_cluster("gpu:2x2"), Still(), lambda spec, seats: 1.0, lease=9.0, **fields)  # type: ignore[arg-type]
    for index, node in enumerate(it.topology.nodes):
        it.hello(Hello(PROTOCOL, node.name, "boot", "gpu", 2, f"10.0.0.{index}"))
    return it


def secrets_of(it: LiveBackend, launch: Launch, placement: Placement = BOTH) -> list[str]:
    it.submit([(SPEC, launch)], None)
    it.send([Start(0, 1, placement)])
    reports = (AgentReport(protocol=PROTOCOL, node=name, boot="boot", known=0, runs=[]) for name in ("gpu-0", "gpu-1"))
    orders = [order for report in reports for order in it.sync(report).runs]
    return [order.secret if order.roster is None else order.roster.secret for order in orders]


SCRIPT = replace(LAUNCH, env=((OPTIONS_VARIABLE, ""),))


@pytest.mark.parametrize("launch", [replace(LAUNCH, in_place=True), SCRIPT], ids=["in place", "a batch script"])
def test_the_nodes_of_a_run_share_a_secret_of_its_start_that_needs_the_key(launch: Launch) -> None:
    one, same = secrets_of(backend(store_key=b"a"), launch)
    assert one == same
    assert len(one) == 64
    assert secrets_of(backend(store_key=b"a"), launch) == [one, one], "a restarted control plane makes the same"
    assert one not in secrets_of(backend(store_key=b"b"), launch)
    assert secrets_of(backend(store_key=b"a"), LAUNCH) == ["", ""]
    assert secrets_of(backend(), SCRIPT, ONE) == [""], "a script on one node needs none"


def test_orders_name_the_lease_and_the_session_and_count_up_with_each_change() -> None:
    it = backend()

    def sync(*runs: RunReport) -> tuple[float, str, int]:
        orders = it.sync(AgentReport(protocol=PROTOCOL, node="gpu-0", boot="boot", known=0, runs=list(runs)))
        assert orders.protocol == PROTOCOL
        return orders.lease, orders.session, orders.generation

    lease, session, generation = sync()
    assert (lease, len(session)) == (9.0, 16)
    assert it.generation("gpu-0") == generation
    it.submit([(SPEC, LAUNCH)], None)
    it.send([Start(0, 1, ONE)])
    assert sync() == (9.0, session, it.generation("gpu-0"))
    assert it.generation("gpu-0") > generation
