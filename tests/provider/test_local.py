"""Agents on this machine: their tokens go over a pipe, and the pause before a restart shrinks again."""

import sys
import time
from pathlib import Path

import pytest

from shoal.core.errors import InputError
from shoal.core.topology import Node
from shoal.provider.local import LOG_BYTES, LocalNodes
from shoal.provider.protocol import AllocationState
from shoal.provider.registry import make_provider


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


def process(nodes: LocalNodes) -> object:
    """The node's latest agent."""
    return nodes.provider._agents["n"].process


def ended(nodes: LocalNodes) -> None:
    deadline = time.monotonic() + 30
    while nodes.provider.seen()[0].state is not AllocationState.ENDED:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def restart_pause(nodes: LocalNodes, clock: Clock) -> float:
    """The seconds between the start of an agent that dies at once, which was now, and the start of the next one."""
    ended(nodes)
    died, before = clock.now, process(nodes)
    for _ in range(1000):
        nodes.ensure_running()
        if process(nodes) is not before:
            return clock.now - died
        clock.now += 0.5
    raise AssertionError("no agent was started")


def test_the_pause_before_a_restart_doubles_and_an_agent_that_has_run_well_is_restarted_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/true")
    clock = Clock()
    nodes = dead_nodes(tmp_path, clock)
    nodes.ensure_running()
    assert [restart_pause(nodes, clock) for _ in range(5)] == [1.0, 2.0, 4.0, 8.0, 16.0]
    (tmp_path / "runs").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "runs").chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "runs"))
    restart_pause(nodes, clock)
    nodes.ensure_running()
    clock.now += 61.0
    nodes.ensure_running()
    nodes.provider.close(nodes.provider.seen()[0].ref, 0.0)
    ended(nodes)
    before = process(nodes)
    nodes.ensure_running()
    assert process(nodes) is not before
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
    clock.now += 10.0
    nodes.ensure_running()
    assert nodes.provider.seen()
    nodes.stop(lambda: False)


def test_the_log_of_a_local_agent_is_begun_anew_when_it_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/true")
    nodes = dead_nodes(tmp_path, Clock())
    nodes.ensure_running()
    log = tmp_path / "nodes" / "n" / "agent.log"
    log.write_bytes(b"x" * (LOG_BYTES + 1))
    nodes.ensure_running()
    assert (log.stat().st_size, log.with_name(log.name + ".1").stat().st_size) == (0, LOG_BYTES + 1)
    nodes.stop(lambda: False)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("locl", "did you mean local"),
        ("local", "say how many, e.g. local:nodes=2x2"),
        ("local:nodes=2", "is not TYPE:NODESxGPUS"),
        ("local:nodes=99x1", "at most 64 nodes"),
        ("local:node=2x2", "did you mean nodes"),
        ("manual:nodes=2x2", "manual takes no options"),
    ],
)
def test_a_wrong_provider_is_refused_in_one_line(tmp_path: Path, spec: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        make_provider(spec, tmp_path)


def test_a_provider_is_found_by_its_name(tmp_path: Path) -> None:
    name, provider = make_provider("local:nodes=2x4,kind=v100", tmp_path)
    assert name == "local"
    assert [(site.name, site.kind, site.gpus) for site in provider.survey()] == [
        ("v100-0", "v100", 4),
        ("v100-1", "v100", 4),
    ]
    name, provider = make_provider("manual", tmp_path)
    assert (name, provider.survey(), provider.seen()) == ("manual", (), ())
