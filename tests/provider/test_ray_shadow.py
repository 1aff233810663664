"""`shoal shadow --on ray` reads what runs on Ray, writes it as sacct would, and can change nothing."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.provider.fake_ray import node_row
from tests.provider.ray_cluster import PYTHON, RayCluster, wait_for
from tests.provider.ray_engine import StrangerDriver

from shoal.provider.protocol import EngineRefusal
from shoal.provider.ray.provider import connect
from shoal.provider.ray.rows import RayOptions
from shoal.provider.ray.shadow import make_watch, read_state
from shoal.workload.importers.rows import Source
from shoal.workload.importers.sacct import read_history

NODES = [node_row("n1", 3), node_row("n2", 4)]
JOB = {"id": "01", "namespace": "vision", "metadata": {}, "began": 90.0, "ended": 0.0, "over": False}


def _actor(name: str, state: str, **fields: Any) -> dict[str, Any]:
    made = {"id": name, "namespace": "vision", "job": "01", "node": NODES[0]["id"], "resources": {"GPU": 1.0}}
    return {**made, "group": "", "state": state, "began": 0.0, "ended": 0.0, **fields}


def _group(state: str, **fields: Any) -> dict[str, Any]:
    bundles = [
        {"resources": {"GPU": 2.0, "CPU": 1.0}, "node": node["id"] if state == "CREATED" else ""} for node in NODES
    ]
    return {"id": "g", "job": "02", "state": state, "bundles": bundles, "asked": 100.0, "waited": 0.0, **fields}


def _state(*actors: dict[str, Any], groups: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    other = {**JOB, "id": "02", "namespace": "x" * 36, "metadata": {"user": "ann"}}
    return {"jobs": [JOB, other], "groups": groups or [], "actors": actors, "nodes": NODES}


def test_actors_and_groups_are_jobs_whose_times_are_rays_or_those_of_the_first_look_that_saw_them(
    tmp_path: Path,
) -> None:
    ignored = [
        _actor("in-group", "ALIVE", group="g"),
        _actor("cpu", "ALIVE", resources={"CPU": 1.0}),
        _actor("ours", "ALIVE", namespace="shoal-12345678"),
    ]
    looks = [
        (_state(_actor("a", "PENDING_CREATION"), *ignored, groups=[_group("PENDING")]), 110.0),
        (_state(_actor("a", "ALIVE", began=115.0), groups=[_group("CREATED", waited=15.0)]), 120.0),
        (_state(_actor("a", "DEAD", began=115.0, ended=160.0), groups=[_group("CREATED", waited=15.0)]), 170.0),
        (_state(_actor("b", "DEAD", began=172.0, ended=174.0)), 180.0),
    ]
    lines: dict[str, str] = {}
    for state, now in looks:
        lines |= read_state(state, lines, now)
    assert [line.split("|")[:10] for line in lines.values()] == [
        ["pg-g", "ann", "", "", "COMPLETED", "100.0", "100.0", "115.0", "180.0", "UNLIMITED"],
        ["actor-a", "vision", "", "", "COMPLETED", "110.0", "110.0", "115.0", "160.0", "UNLIMITED"],
        ["actor-b", "vision", "", "", "COMPLETED", "172.0", "172.0", "172.0", "174.0", "UNLIMITED"],
    ]
    from shoal.provider.queue_watch import QueueWatch

    QueueWatch(tmp_path / "seen.txt", lambda _: lines).look()
    found = {one.job.id: one for one in read_history(Source(tmp_path / "seen.txt")).jobs}
    assert {name: (one.job.gpus, one.kind, one.job.work, one.nodes) for name, one in found.items()} == {
        "pg-g": (4, "v100", 65.0, "n1,n2"),
        "actor-a": (1, "v100", 45.0, "n1"),
        "actor-b": (1, "v100", 2.0, "n1"),
    }


def test_the_shadow_runs_the_bridge_without_a_namespace_and_sends_only_requests_for_the_state(
    shoal: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # two jobs need no second process
    ended = [_actor(name, "DEAD", began=100.0, ended=200.0) for name in "ab"]
    python = tmp_path / "python"
    answers = json.dumps({"answer": "connected"}), json.dumps({"answer": _state(*ended)})
    python.write_text(
        f"#!{sys.executable}\nimport sys\nlog = open({str(tmp_path / 'ran')!r}, 'a')\nprint(sys.argv[2:], file=log)\n"
        f"print({answers[0]!r}, flush=True)\nfor line in sys.stdin:\n"
        f"    print(line.strip(), file=log, flush=True)\n    print({answers[1]!r}, flush=True)\n"
    )
    python.chmod(0o755)
    spec = f"ray:address=127.0.0.9:1,ray_python={python}"
    code, printed, _ = shoal("shadow", "--on", spec, "--hours", "0", "--policy", "las", "--json")
    assert code == 0
    assert json.loads(printed)["jobs"] == 2
    bridge, asked = (tmp_path / "ran").read_text().splitlines()
    assert bridge.endswith("bridge.py', '127.0.0.9:1']")
    assert asked == '{"do": "state"}'


def _in_order(state: dict[str, Any]) -> dict[str, Any]:
    return {name: sorted(rows, key=lambda row: row["id"]) for name, rows in state.items()}


@pytest.mark.engines
def test_a_watch_of_a_real_ray_sees_its_jobs_and_leaves_no_trace(ray: RayCluster, tmp_path: Path) -> None:
    stranger = StrangerDriver(ray)
    options = f"address={ray.address},ray_python={PYTHON}"
    try:
        stranger.hold("n1", 1)
        group = f"pg-{stranger.group(2)}"
        reader = connect(RayOptions(ray.address, str(PYTHON)), tmp_path / "log")
        before = _in_order(reader.call("state", 20.0))
        watch = make_watch(options, tmp_path / "seen.txt")
        watch.look()
        running = {line.split("|")[0]: line.split("|") for line in watch.jobs.values() if "|RUNNING|" in line}
        found = {(row[1], row[11], row[12]) for row in running.values()}
        assert found == {("stranger", "gres/gpu:v100=1", "n1"), ("stranger", "gres/gpu:v100=2", "n1,n2")}
        assert abs(float(running[group][7]) - time.time()) < 60
        assert _in_order(reader.call("state", 20.0)) == before  # no driver, no actor, no other node
        for verb in ("create", "start", "kill", "warn", "ask", "survey"):
            with pytest.raises(EngineRefusal):
                reader.call(verb, 20.0)
        reader.close()
    finally:
        stranger.leave()
    wait_for(lambda: watch.look() and not any("|RUNNING|" in line for line in watch.jobs.values()))
    ended = [one for one in read_history(Source(tmp_path / "seen.txt")).jobs if one.job.id in running]
    assert sorted((one.job.gpus, one.kind, one.job.work > 0) for one in ended) == [(1, "v100", True), (2, "v100", True)]


def test_an_interpreter_without_ray_is_refused_with_a_sentence(shoal: Callable[..., tuple[int, str, str]]) -> None:
    code, _, said = shoal("shadow", "--on", f"ray:address=127.0.0.9:1,ray_python={sys.executable}")
    assert code == 2
    assert "No module named 'ray'" in said
    assert subprocess.run([sys.executable, "-c", "import shoal.provider.ray"], check=False).returncode == 0
