"""Which reports of an agent count: only those of the agent that received the answer to the last hello."""

from dataclasses import dataclass

import pytest

from shoal.core.errors import InputError
from shoal.core.topology import parse_cluster
from shoal.live.backend import LiveBackend
from shoal.wire.messages import PROTOCOL, AgentOrders, AgentReport, Hello


@dataclass
class StoppedClock:
    def now(self) -> float:
        return 1.0


def backend() -> LiveBackend:
    return LiveBackend(parse_cluster("gpu:1x2"), StoppedClock(), lambda spec, placement: 1.0)


def hello(cluster: LiveBackend, boot: str) -> AgentOrders:
    return cluster.hello(Hello(PROTOCOL, "gpu-0", boot, "gpu", 2, "127.0.0.1"))


def report(cluster: LiveBackend, boot: str, session: str) -> AgentOrders:
    message = AgentReport(protocol=PROTOCOL, node="gpu-0", boot=boot, known=0, runs=[], session=session)
    return cluster.sync(message)


def test_a_late_hello_and_a_late_report_of_a_dead_agent_do_not_count_as_the_nodes() -> None:
    cluster = backend()
    dead = hello(cluster, "dead")
    report(cluster, "dead", dead.session)
    live = hello(cluster, "live")
    report(cluster, "live", live.session)
    hello(cluster, "dead")  # a copy that was under way: the dead agent never reads the answer
    with pytest.raises(InputError, match="register first"):
        report(cluster, "dead", dead.session)
    assert cluster.last_report(0) is None
    again = hello(cluster, "live")
    report(cluster, "live", again.session)
    assert cluster.last_report(0) is not None


def test_a_report_of_an_agent_that_knows_no_sessions_counts() -> None:
    cluster = backend()
    hello(cluster, "boot")
    report(cluster, "boot", "")
    assert cluster.last_report(0) is not None
