"""Nodes that join a running control plane and nodes that are removed: jobs, views, journal, restarts and forecasts."""

from pathlib import Path

import pytest
from tests.live.test_control_plane import job, obey, opened, soon, state, submit, sync
from tests.refusals import refusal

from shoal.forecast.present import read_present
from shoal.live.control_plane import ControlPlane
from shoal.live.home import JOURNAL
from shoal.scenario.replay import read_stories, replay_file
from shoal.wire.messages import PROTOCOL, Hello, NewNode


def hello(plane: ControlPlane, node: str, kind: str = "gpu", gpus: int = 4) -> None:
    plane.hello(Hello(PROTOCOL, node, "boot", kind, gpus, "127.0.0.1"))


def add(plane: ControlPlane, name: str = "new", kind: str = "gpu", gpus: int = 4, **more: bool) -> None:
    plane.members.add(NewNode(name, kind, gpus), **more).result(20)


def shown(plane: ControlPlane) -> dict[str, bool]:
    return {row.name: row.up for row in plane.nodes(None)}


def test_a_node_joins_and_runs_jobs_that_were_too_wide(tmp_path: Path) -> None:
    with opened(tmp_path, "gpu:1x2") as plane:
        with refusal("gpus: 4: the most this cluster has of one kind is 2"):
            submit(plane, job("wide", 4))
        add(plane)
        (wide,) = submit(plane, job("wide", 4))
        assert shown(plane) == {"gpu-0": True, "new": False}
        assert "nodes" in plane.job(wide, None).change
        hello(plane, "new")
        soon(lambda: shown(plane) == {"gpu-0": True, "new": True})
        (order,) = obey(plane, "new")
        assert order.gpus == 4
        soon(lambda: state(plane, wide) == "running")
        row = plane.cluster()
        assert (row.cluster, row.up_gpus, row.used_gpus) == ("gpu:1x2,gpu:1x4", 6, 4)
        assert "new (4 GPUs)" in " ".join(moment.what for moment in plane.job(wide, None).story)
        assert plane.figures().nodes_up == 2
    replayed, _, _ = replay_file(tmp_path / "home" / JOURNAL)
    assert replayed.decisions > 0
    stories, difference = read_stories(tmp_path / "home")
    assert not difference
    assert [story.id for story in stories] == [wide]


def test_no_node_joins_beyond_the_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.live.members.MOST_LIVE_NODES", 2)
    with opened(tmp_path, "gpu:1x2") as plane:
        add(plane, "second")
        with refusal("node: 'third': is one more than 2, and a control plane serves at most 20,000: run several"):
            add(plane, "third")
        assert list(shown(plane)) == ["gpu-0", "second"]


def test_a_node_of_a_new_kind_joins(tmp_path: Path) -> None:
    with opened(tmp_path, "gpu:1x2") as plane:
        with refusal("kinds: 'h100': unknown; choose one of gpu"):
            submit(plane, job("fast", 1, kinds=["h100"]))
        add(plane, "fast-0", "h100", 8)
        (fast,) = submit(plane, job("fast", 3, kinds=["h100"]))
        hello(plane, "fast-0", "h100", 8)
        obey(plane, "fast-0")
        soon(lambda: state(plane, fast) == "running")
        assert plane.job(fast, None).job.kind == "h100"
    assert replay_file(tmp_path / "home" / JOURNAL)[0].decisions > 0


@pytest.mark.parametrize("compacted", [False, True])
def test_a_joined_node_is_there_after_a_restart_with_its_running_job(tmp_path: Path, compacted: bool) -> None:
    with opened(tmp_path, "gpu:1x2") as plane:
        add(plane)
        hello(plane, "new")
        (wide,) = submit(plane, job("wide", 4))
        obey(plane, "new")
        soon(lambda: state(plane, wide) == "running")
        if compacted:
            plane.compaction.most_records = 1
            (_,) = submit(plane, job("other", 1))
            soon(lambda: (tmp_path / "home" / "archive").is_dir())
    with opened(tmp_path, "gpu:1x2") as plane:  # the cluster is declared as before, without the node
        assert shown(plane)["new"]
        assert state(plane, wide) == "running"
        assert plane.cluster().cluster == "gpu:1x2,gpu:1x4"
        submit(plane, job("wide", 4))
        hello(plane, "new")
        sync(plane, "new", [])
        present = read_present(tmp_path / "home" / JOURNAL, 0.0)
        assert present.scheduler.state.topology.node_index == {"gpu-0": 0, "new": 1}
    with opened(tmp_path, "gpu:2x2") as plane:  # a later declared node follows the joined one
        assert list(shown(plane)) == ["gpu-0", "new", "gpu-1"]
        add(plane, "newer")
        assert list(shown(plane)) == ["gpu-0", "new", "gpu-1", "newer"]
    assert replay_file(tmp_path / "home")[0].decisions > 0


def test_a_removed_node_is_no_capacity_and_its_agent_is_refused_until_it_is_added_again(tmp_path: Path) -> None:
    with opened(tmp_path, "gpu:2x2") as plane:
        (runs,) = submit(plane, job("runs", 2))
        obey(plane, "gpu-0")
        wait = "`shoal nodes drain gpu-0` and wait for their end, or cancel them"
        with refusal(f"node: 'gpu-0': has runs of {runs}: {wait}"):
            plane.members.remove("gpu-0")
        plane.members.remove("gpu-1").result(20)
        assert shown(plane) == {"gpu-0": True}
        assert plane.figures().nodes_down == 0
        with refusal("gpus: 4: the most this cluster has of one kind is 2"):
            submit(plane, job("wide", 4))
        with refusal("node: 'gpu-1': was removed from the cluster: `shoal nodes add gpu-1` adds it again"):
            hello(plane, "gpu-1", gpus=2)
        with refusal("node: 'gpu-1': was removed already"):
            plane.members.remove("gpu-1")
    with opened(tmp_path, "gpu:1x2") as plane:
        assert shown(plane) == {"gpu-0": True}
        add(plane, "gpu-1", gpus=2)
        hello(plane, "gpu-1", gpus=2)
        soon(lambda: shown(plane) == {"gpu-0": True, "gpu-1": True})
        assert plane.cluster().up_gpus == 4
        plane.members.remove("gpu-1").result(20)
    with opened(tmp_path, "gpu:2x2") as plane:  # declared again, it is back
        assert shown(plane) == {"gpu-0": True, "gpu-1": True}
    assert replay_file(tmp_path / "home" / JOURNAL)[0].decisions > 0


def test_a_node_that_cannot_join_is_refused_in_one_line(tmp_path: Path) -> None:
    with opened(tmp_path, "gpu:1x2") as plane:
        with refusal("node: 'gpu-0': is a node of this cluster already"):
            add(plane, "gpu-0", gpus=2)
        with refusal("node gpu-0: '3 x gpu': is 2 x gpu in this home's journal: give it another name"):
            add(plane, "gpu-0", gpus=3)
        with refusal("node: 'gpu-0': is up: stop its agent and wait for its lease, or choose another name"):
            add(plane, "gpu-0", gpus=2, again=True)
        with refusal("node: 'gpu-1': unknown; did you mean gpu-0?"):
            plane.members.remove("gpu-1")
        add(plane, "new")
        add(plane, "new", again=True)  # an agent that joins again before it has connected
        assert list(shown(plane)) == ["gpu-0", "new"]
