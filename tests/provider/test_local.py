"""Agents on this machine: their tokens go over a pipe, and the pause before a restart shrinks again."""

import sys
import time
from pathlib import Path

import pytest

from shoal.core.topology import Node
from shoal.provider.local import LOG_BYTES, LocalNodes


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def dead_nodes(folder: Path, clock: Clock) -> LocalNodes:
    """One node whose agents are programs that end at once."""
    node = Node("n", "gpu", 1)
    return LocalNodes.of("http://127.0.0.1:1", lambda node: f"secret-of-{node}", [node], folder, clock=clock)


def restart_pause(nodes: LocalNodes, clock: Clock) -> float:
    """The seconds between an agent's death, which is now, and the start of the next one."""
    deadline = time.monotonic() + 30
    while nodes.agents[0].running:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    died, before = clock.now, nodes.agents[0].process
    for _ in range(1000):
        nodes.ensure_running()
        if nodes.agents[0].process not in (None, before):
            return clock.now - died
        clock.now += 0.25
    raise AssertionError("no agent was started")


def test_the_pause_before_a_restart_doubles_and_shrinks_again_once_an_agent_has_run_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/true")
    clock = Clock()
    nodes = dead_nodes(tmp_path, clock)
    nodes.ensure_running()
    assert [restart_pause(nodes, clock) for _ in range(8)] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    clock.now += 61.0  # the present agent ran all that time
    assert [restart_pause(nodes, clock) for _ in range(2)] == [0.5, 1.0]
    nodes.stop(lambda: False)


def test_an_agent_that_cannot_be_started_is_tried_again_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "executable", "/bin/true")
    clock = Clock()
    nodes = dead_nodes(tmp_path, clock)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "mkdir", full)
        for _ in range(3):
            nodes.ensure_running()
            clock.now += 1.0
    nodes.ensure_running()
    assert nodes.agents[0].process is not None
    nodes.stop(lambda: False)


def test_the_log_of_a_local_agent_is_begun_anew_when_it_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/true")
    nodes = dead_nodes(tmp_path, Clock())
    nodes.ensure_running()
    log = nodes.agents[0].log_file
    log.write_bytes(b"x" * (LOG_BYTES + 1))
    nodes.ensure_running()
    assert (log.stat().st_size, log.with_name(log.name + ".1").stat().st_size) == (0, LOG_BYTES + 1)
    nodes.stop(lambda: False)
