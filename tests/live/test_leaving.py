"""A node whose agent is stopped: its jobs are warned to save and start elsewhere, and the node is lost at once."""

from pathlib import Path

from tests.live.test_control_plane import job, obey, opened, soon, state, submit

from shoal.core.events import EventBatch, JobCrashed, JobRequeued, JobStopped, NodeDrained, NodeLost, NodeResumed
from shoal.live.control_plane import ControlPlane
from shoal.live.home import JOURNAL
from shoal.scenario.replay import replay_file
from shoal.store.journal import JournalFile
from shoal.wire.messages import PROTOCOL, AgentOrders, AgentReport, Hello, RankExit, RunOrder, RunReport


def report(plane: ControlPlane, node: str, runs: list[RunReport], leaving: float | None = None) -> AgentOrders:
    return plane.sync(AgentReport(protocol=PROTOCOL, node=node, boot="boot", known=0, runs=runs, leaving=leaving))


def running(order: RunOrder) -> RunReport:
    return RunReport(job=order.job, incarnation=order.incarnation, phase="running")


def saved(order: RunOrder) -> RunReport:
    exits = [RankExit(rank, 0, warned=True) for rank in range(order.local_ranks)]
    cause = "its node's agent was stopped"
    return RunReport(
        job=order.job, incarnation=order.incarnation, phase="ended", exits=exits, cause=cause, blameless=True
    )


def kinds(folder: Path, *wanted: type) -> list[type]:
    records = JournalFile(folder / "home" / JOURNAL).read()
    found = [event for record in records if isinstance(record, EventBatch) for event in record.events]
    return [type(event) for event in found if isinstance(event, wanted)]


def test_a_job_on_a_leaving_node_is_stopped_and_starts_elsewhere_with_the_last_report(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        (one,) = submit(plane, job("one", 2))
        (order,) = obey(plane, "gpu-0")
        soon(lambda: state(plane, one) == "running")
        orders = report(plane, "gpu-0", [running(order)], leaving=10.0)
        assert [run.phase for run in orders.runs] == ["stop"]
        soon(lambda: "is leaving" in plane.nodes(None)[0].drained)
        report(plane, "gpu-0", [saved(order)], leaving=0.0)
        (again,) = obey(plane, "gpu-1")
        assert (again.job, again.incarnation) == (order.job, 2)
        soon(lambda: state(plane, one) == "running")
        rows = {row.name: row for row in plane.nodes(None)}
        assert (rows["gpu-0"].up, rows["gpu-0"].drained, rows["gpu-1"].up) == (False, "", True)
        assert plane.job(one, None).crashes == 0
        assert "put back into the queue by gpu-0, which is leaving" in " ".join(
            moment.what for moment in plane.job(one, None).story
        )
        (wide,) = submit(plane, job("wide", 4))
        plane.hello(Hello(PROTOCOL, "gpu-0", "boot-2", "gpu", 2, "127.0.0.1"))
        soon(lambda: plane.nodes(None)[0].up)
        assert state(plane, wide) == "pending"
    watched = (NodeDrained, JobRequeued, JobStopped, JobCrashed, NodeLost, NodeResumed)
    assert kinds(tmp_path, *watched)[-5:] == [NodeDrained, JobRequeued, JobStopped, NodeLost, NodeResumed]
    assert replay_file(tmp_path / "home" / JOURNAL)[0].decisions > 0


def test_a_gang_over_two_nodes_is_warned_on_both_when_one_leaves(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        (one,) = submit(plane, job("one", 4))
        orders = {node: obey(plane, node)[0] for node in ("gpu-0", "gpu-1")}
        for node in orders:
            obey(plane, node)
        soon(lambda: state(plane, one) == "running")
        report(plane, "gpu-0", [running(orders["gpu-0"])], leaving=10.0)
        (other,) = report(plane, "gpu-1", [running(orders["gpu-1"])]).runs
        assert other.phase == "stop"


def test_a_node_that_an_operator_drained_stays_drained_when_its_agent_returns(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        plane.drain("gpu-0", "a fan", "ana").result(20)
        report(plane, "gpu-0", [], leaving=0.0)
        soon(lambda: not plane.nodes(None)[0].up)
        plane.hello(Hello(PROTOCOL, "gpu-0", "boot-2", "gpu", 2, "127.0.0.1"))
        soon(lambda: plane.nodes(None)[0].up)
        assert plane.nodes(None)[0].drained == "a fan"


def test_an_agent_that_crashed_while_it_was_leaving_is_used_again_when_it_returns(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        report(plane, "gpu-0", [], leaving=5.0)
        soon(lambda: "is leaving" in plane.nodes(None)[0].drained)
    with opened(tmp_path) as plane:  # also after a restart of the control plane
        soon(lambda: plane.nodes(None)[0].drained == "")
        submit(plane, job("wide", 4))
        assert obey(plane, "gpu-0")
