"""Nodes that fail to start runs: when one is drained, probed and resumed."""

from math import inf

from shoal.core.events import NodeDrained, NodeResumed
from shoal.core.topology import Node
from shoal.live.node_health import FIRST_PROBE, LONGEST_PROBE, MOST_FAILED_STARTS, NodeHealth

NODES = (Node("n0", "gpu", 2), Node("n1", "gpu", 2))


def idle(node: int) -> bool:
    return False


def drained() -> NodeHealth:
    """Node 0, drained at 100 s: three jobs could not start there and started on node 1."""
    it = NodeHealth(NODES)
    for job in range(MOST_FAILED_STARTS):
        it.failed(0, "no such program", 100.0)
        found = it.started(job, [1], {0}, 100.0)
    reason = "3 jobs that could not start here started elsewhere; the last cause: no such program"
    assert found == [NodeDrained(100.0, 0, reason)]
    return it


def test_a_failed_start_counts_against_a_node_only_if_the_job_starts_elsewhere() -> None:
    it = NodeHealth(NODES)
    for now in range(50):
        it.failed(0, "no such program", float(now))
    assert it.next_probe == inf
    drained()


def test_one_job_counts_once_and_a_start_that_succeeds_clears_the_count() -> None:
    it = NodeHealth(NODES)
    assert [it.started(7, [1], {0}, 1.0) for _ in range(9)] == [[]] * 9
    assert it.started(8, [1], {0}, 2.0) == []
    assert it.started(9, [0], (), 3.0) == []
    assert [it.started(job, [1], {0}, 4.0) for job in (10, 11)] == [[], []]


def test_a_drained_node_is_probed_less_often_each_time_a_start_fails_and_resumed_by_one_that_succeeds() -> None:
    it, waits = drained(), []
    now = 100.0
    for _ in range(9):
        assert it.probe(it.next_probe - 0.1, idle) == []
        waits.append(it.next_probe - now)
        now = it.next_probe
        assert it.probe(now, idle) == [NodeResumed(now, 0, probe=True)]
        it.failed(0, "no such program", now)
    assert waits[:4] == [FIRST_PROBE, 2 * FIRST_PROBE, 4 * FIRST_PROBE, 8 * FIRST_PROBE]
    assert waits[-1] == LONGEST_PROBE
    assert it.started(9, [0], (), now + 1.0) == [NodeResumed(now + 1.0, 0)]
    assert it.next_probe == inf


def test_counts_restored_from_a_journal_continue() -> None:
    it = NodeHealth(NODES)
    it.resume_counts({0: {1, 2}}, {0: "no such folder"})
    reason = "3 jobs that could not start here started elsewhere; the last cause: no such folder"
    assert it.started(3, [1], {0}, 5.0) == [NodeDrained(5.0, 0, reason)]


def test_a_node_where_a_run_is_starting_gets_no_second_probe() -> None:
    it = drained()
    assert it.probe(200.0, lambda node: True) == []
    assert it.probe(200.0 + FIRST_PROBE, idle) == [NodeResumed(200.0 + FIRST_PROBE, 0, probe=True)]


def test_a_node_that_an_operator_drained_is_neither_probed_nor_resumed_by_a_start() -> None:
    it = NodeHealth(NODES)
    assert it.drain(0, "a fan", 5.0, "ana") == [NodeDrained(5.0, 0, "a fan", "ana")]
    it.failed(0, "no such program", 6.0)
    assert (it.next_probe, it.started(1, [0], (), 7.0)) == (inf, [])
    assert it.resume(0, 8.0) == [NodeResumed(8.0, 0)]
    assert it.resume(0, 9.0) == [], "it is not drained any more"


def test_what_a_journal_left_drained_is_probed_again_unless_an_operator_drained_it() -> None:
    it = NodeHealth(NODES)
    it.resume_drains({0: NodeDrained(1.0, 0, "why"), 1: NodeDrained(1.0, 1, "a fan", "ana")}, 50.0)
    assert it.next_probe == 50.0 + FIRST_PROBE
    assert it.probe(1e9, idle) == [NodeResumed(1e9, 0, probe=True)]
