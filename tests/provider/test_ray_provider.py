"""The provider `ray` on a Ray in memory, and with ``make test-engines`` on a real one: the same table for both."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.provider.fake_ray import FakeRay
from tests.provider.ray_cluster import RayCluster, wait_for
from tests.provider.ray_engine import StrangerDriver, namespace_of, provider_on

from shoal.core.errors import InputError
from shoal.provider.protocol import AgentCall, Allocation, AllocationState, EngineAway, EngineRefusal, Seen, Site
from shoal.provider.ray.provider import RayProvider
from shoal.provider.ray.rows import RayOptions, read_actor, read_ray_options

SECRET = "the-token-of-this-allocation"

AGENT = """#!/bin/sh
# Stands for Python: writes what an agent is given, then waits; a warning is noted and obeyed.
me=$0 arguments="$*"
while [ $# -gt 0 ]; do case "$1" in --token-fd) fd=$2;; --node) me="$0.$2";; esac; shift; done
read -r token < /proc/self/fd/$fd
trap 'echo TERM >> "$me.signals"; [ -e "$0.deaf" ] || exit 0' TERM
env > "$me.env"; echo "$arguments" > "$me.arguments"
echo "token=$token devices=$CUDA_VISIBLE_DEVICES pid=$$" > "$me.new"
mv "$me.new" "$me.given"
while :; do sleep 0.05; done
"""


class FakeRig:
    """A provider on a Ray in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ray, self.now = folder, FakeRay(), 0.0
        self.ours: list[RayProvider] = []

    def provider(self, namespace: str = "ours", **options: Any) -> RayProvider:
        made = RayProvider(RayOptions(**options), self.folder, self.ray.connect(namespace), clock=lambda: self.now)
        made.survey()
        return made

    def hold(self, node: str, gpus: int) -> list[str]:
        return self.ray.hold(node, gpus)

    def kill_actor(self, name: str) -> None:
        self.ray.kill(name, "ours")

    def wishes(self) -> list[dict[str, float]]:
        return self.ray.wishes

    def given(self, provider: RayProvider, name: str) -> dict[str, str]:
        wait_for(lambda: _one(provider, name).state is AllocationState.UP)
        actor = self.ray.find(name, "ours")
        agent = self.ray.agents[actor["id"]]
        return {
            "token": agent["token"],
            "devices": ",".join(actor["gpus"]),
            "arguments": " ".join(agent["words"]),
            "env": "",
        }

    def signals(self, name: str) -> list[str]:
        return next(agent["signals"] for ref, agent in self.ray.agents.items() if self.ray.actors[ref]["name"] == name)

    def deafen(self) -> None:
        self.ray.deaf = True

    def end_agents(self) -> None:
        self.ray.agents.clear()

    def has_worker(self, node: str) -> bool:
        return any(one["state"] == "ALIVE" for one in self.ray.actors.values() if one["name"] == node)

    def lose(self, node: str) -> None:
        self.ray.lose(node)

    def regain(self, node: str) -> None:
        self.ray.regain(node)


class RealRig:
    """A provider on a real Ray, whose agents are shell scripts."""

    def __init__(self, folder: Path, cluster: RayCluster) -> None:
        self.folder, self.cluster, self.now = folder, cluster, 0.0
        self.stranger: StrangerDriver | None = None
        self.python = folder / "python"
        self.python.write_text(AGENT)
        self.python.chmod(0o755)
        self.ours: list[RayProvider] = []

    def provider(self, namespace: str = "ours", **options: Any) -> RayProvider:
        text = "".join(f",{key}={value}" for key, value in options.items())
        made = provider_on(self.cluster, self.folder / namespace, f",python={self.python}{text}")
        made.clock = lambda: self.now
        self.ours.append(made)
        made.survey()
        return made

    def hold(self, node: str, gpus: int) -> list[str]:
        self.stranger = self.stranger or StrangerDriver(self.cluster)
        return self.stranger.hold(node, gpus)

    def kill_actor(self, name: str) -> None:
        self.stranger = self.stranger or StrangerDriver(self.cluster)
        self.stranger.kill_actor(name, namespace_of(self.ours[0]))

    def wishes(self) -> list[dict[str, float]]:
        self.stranger = self.stranger or StrangerDriver(self.cluster)
        return self.stranger.wishes()

    def given(self, provider: RayProvider, name: str) -> dict[str, str]:
        file = Path(f"{self.python}.{name}.given")
        wait_for(lambda: provider.seen() and file.exists())
        given = dict(word.split("=", 1) for word in file.read_text().split())
        return given | {end: Path(f"{self.python}.{name}.{end}").read_text() for end in ("arguments", "env")}

    def signals(self, name: str) -> list[str]:
        file = Path(f"{self.python}.{name}.signals")
        with suppress(AssertionError):
            wait_for(file.exists, 2.0)
        return file.read_text().split() if file.exists() else []

    def deafen(self) -> None:
        Path(f"{self.python}.deaf").touch()

    def end_agents(self) -> None:
        for file in self.folder.glob("python.*.given"):
            with suppress(ProcessLookupError):
                os.kill(int(file.read_text().split("pid=")[1]), signal.SIGKILL)

    def has_worker(self, node: str) -> bool:
        parent = Path(f"{self.python}.{node}.arguments").read_text().split()[-1]
        return Path(f"/proc/{parent}").exists()

    def lose(self, node: str) -> None:
        self.cluster.kill_node(node)

    def regain(self, node: str) -> None:
        self.cluster.start_node(node)
        self.cluster.wait_for_node(node)


Rig = FakeRig | RealRig


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.engines)])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    if request.param == "fake":
        yield FakeRig(tmp_path)
        return
    made = RealRig(tmp_path, request.getfixturevalue("ray"))
    yield made
    for provider in made.ours:
        for one in provider.seen():
            if one.state.open:
                provider.close(one.ref, 0.0)
        wait_for(lambda: not any(one.state.open for one in provider.seen()))  # noqa: B023
        provider.connection.close()
    made.end_agents()
    if made.stranger is not None:
        made.stranger.leave()


def _allocation(node: str, gpus: int = 2) -> Allocation:
    return Allocation(node, node, "v100", gpus, AgentCall(("--node", node), lambda: SECRET))


def _one(provider: RayProvider, name: str) -> Seen:
    """Return the open allocation of a name, else the latest."""
    return [one for one in sorted(provider.seen(), key=lambda one: one.state.open) if one.name == name][-1]


def test_the_survey_has_every_node_with_gpus_that_shoal_was_given(rig: Rig) -> None:
    assert rig.provider().survey() == [Site(name, "v100", 2) for name in ("n1", "n2")]
    assert rig.provider(gpus=1, label="pool=gpu").survey() == [Site(name, "v100", 1) for name in ("n1", "n2")]
    assert rig.provider(label="pool=other").survey() == []


def test_an_agent_gets_its_gpus_and_its_token_and_is_opened_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_TOKEN", SECRET)
    provider = rig.provider()
    for _ in range(2):
        provider.open(_allocation("n1"))
    given = rig.given(provider, "n1")
    assert (given["token"], given["devices"]) == (SECRET, "0,1")
    assert "--address 127.0.0.3" in given["arguments"]
    assert SECRET not in given["arguments"] + given["env"]
    assert "RAY_" not in given["env"]
    provider.open(_allocation("n1"))
    assert [(one.name, one.state) for one in provider.seen()] == [("n1", AllocationState.UP)]
    assert not rig.provider("theirs").seen()


def test_gpus_of_others_are_left_alone_and_a_full_node_waits_with_rays_reason(rig: Rig) -> None:
    assert rig.hold("n1", 1) == ["0"]
    provider = rig.provider()
    provider.open(_allocation("n1"))
    wait_for(lambda: _one(provider, "n1").why == "1 of the 2 GPUs are free")
    assert _one(provider, "n1").state is AllocationState.WAITING
    provider.close(_one(provider, "n1").ref, 30.0)
    wait_for(lambda: not _one(provider, "n1").state.open)
    small = rig.provider(gpus=1)
    small.open(_allocation("n1", 1))
    assert rig.given(small, "n1")["devices"] == "1"


def test_an_allocation_that_is_closed_is_warned_once_and_killed_after_its_grace(rig: Rig) -> None:
    provider = rig.provider()
    for node in ("n1", "n2"):
        provider.open(_allocation(node))
        rig.given(provider, node)
    provider.close(_one(provider, "n2").ref, 30.0)
    wait_for(lambda: _one(provider, "n2").state is AllocationState.ENDED)
    assert _one(provider, "n2").why == "its agent has ended"
    rig.deafen()
    ref = _one(provider, "n1").ref
    for rig.now in (0.0, 10.0, 29.0):
        provider.close(ref, 30.0)
    assert rig.signals("n1") == ["TERM"]
    assert _one(provider, "n1").state is AllocationState.UP
    rig.now = 31.0
    provider.close(ref, 30.0)
    wait_for(lambda: not _one(provider, "n1").state.open)
    provider.close(ref, 30.0)  # gone: nothing to do


def test_no_agent_starts_before_an_earlier_one_of_the_node_has_ended(rig: Rig) -> None:
    provider = rig.provider()
    provider.open(_allocation("n1"))
    rig.given(provider, "n1")
    rig.deafen()
    rig.kill_actor("n1")
    wait_for(lambda: _one(provider, "n1").state is AllocationState.LOST)
    assert _one(provider, "n1").why == "its actor was killed"

    def early() -> str:
        raise AssertionError("the token was replaced while the earlier agent ran")

    provider.open(Allocation("n1", "n1", "v100", 2, AgentCall(("--node", "n1"), early)))
    wait_for(lambda: _one(provider, "n1").why == "an earlier agent of the node has not ended")
    provider.close(_one(provider, "n1").ref, 30.0)
    wait_for(lambda: not _one(provider, "n1").state.open)
    provider.open(_allocation("n1"))
    rig.end_agents()
    wait_for(lambda: _one(provider, "n1").state is AllocationState.UP)


def test_an_actor_that_an_earlier_control_plane_did_not_come_to_start_is_replaced(rig: Rig) -> None:
    before = rig.provider()
    before.open(_allocation("n1"))
    after = rig.provider()
    wait_for(lambda: (seen := after.seen()) and not any(one.state.open for one in seen))
    after.open(_allocation("n1"))
    assert rig.given(after, "n1")["token"] == SECRET
    again = rig.provider()
    wait_for(lambda: _one(again, "n1").state is AllocationState.UP)
    assert [one.state for one in again.seen() if one.state.open] == [AllocationState.UP]


def test_a_node_that_returns_is_the_same_node_with_another_identifier(rig: Rig) -> None:
    provider = rig.provider()
    provider.open(_allocation("n2"))
    rig.given(provider, "n2")
    rig.lose("n2")
    wait_for(lambda: provider.survey()[-1].state == "down")
    assert provider.survey()[-1].why
    with pytest.raises(EngineRefusal, match="Ray has no node n2 now"):
        provider.open(_allocation("n2"))
    wait_for(lambda: _one(provider, "n2").state is AllocationState.LOST)
    wait_for(lambda: not rig.has_worker("n2"))  # an agent is warned when this process ends
    rig.end_agents()
    rig.regain("n2")
    wait_for(lambda: provider.survey() == [Site(name, "v100", 2) for name in ("n1", "n2")])
    provider.open(_allocation("n2"))
    wait_for(lambda: _one(provider, "n2").state is AllocationState.UP)


def test_an_engine_that_is_away_changes_nothing(tmp_path: Path) -> None:
    rig = FakeRig(tmp_path)
    provider = rig.provider()
    rig.ray.away = True
    for call in (provider.survey, provider.seen):
        with pytest.raises(EngineAway):
            call()
    with pytest.raises(EngineAway):
        provider.open(_allocation("n1"))
    rig.ray.away = False
    assert provider.seen() == []


def test_all_allocations_are_listed_by_one_request(tmp_path: Path) -> None:
    rig = FakeRig(tmp_path)
    provider = rig.provider()
    for node in ("n1", "n2"):
        provider.open(_allocation(node))
    provider.seen()
    rig.ray.calls.clear()
    assert len(provider.seen()) == 2
    assert [verb for verb, _ in rig.ray.calls] == ["allocations"]


def test_a_wish_for_gpus_is_one_for_the_whole_cluster_and_can_be_withdrawn(rig: Rig) -> None:
    provider, typed = rig.provider(), {"accelerator_type:V100": 0.001}
    provider.ask({"v100": 3, "gpu": 1})
    wished = [{"GPU": 2.0, **typed}] * 2 + [{"GPU": 1.0}] + [{"GPU": 1.0, **typed}] * 3
    assert sorted(map(str, map(dict, rig.wishes()))) == sorted(map(str, wished))
    provider.ask({})
    assert rig.wishes() == []


def test_a_wish_is_sent_when_it_changes_and_none_is_withdrawn_that_others_made(tmp_path: Path) -> None:
    rig = FakeRig(tmp_path)
    provider = rig.provider()
    for kinds in ({}, {"v100": 1}, {"v100": 1}, {"v100": 2}):
        provider.ask(kinds)
    assert len([verb for verb, _ in rig.ray.calls if verb == "ask"]) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [("gpus=-1", "must not be negative"), ("label=gpu", "write label=KEY=VALUE"), ("adress=x", "did you mean address")],
)
def test_a_wrong_option_is_named(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_ray_options(text)


def test_a_node_that_ray_drains_is_draining_and_an_actor_that_ended_long_ago_is_forgotten(tmp_path: Path) -> None:
    rig = FakeRig(tmp_path)
    provider = rig.provider()
    rig.ray.nodes[1]["draining"] = True
    assert provider.survey()[0] == Site("n1", "v100", 2, state="draining", why="Ray drains it")
    provider.open(_allocation("n2"))
    provider.seen()
    rig.kill_actor("n2")
    assert _one(provider, "n2").why == "its actor was killed"
    rig.ray.actors["00000001"]["ended"] -= 301
    assert provider.seen() == []


@pytest.mark.parametrize(
    ("why", "state"),
    [
        ("WORKER_DIED The actor exited: exit_actor() was called.", AllocationState.ENDED),
        (
            "WORKER_DIED The actor is dead because its worker process has died. Worker exit type: INTENDED_USER_EXIT "
            "Worker exit detail: User requested to exit the actor.",
            AllocationState.ENDED,
        ),
        (
            "WORKER_DIED The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR "
            "Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file.",
            AllocationState.LOST,
        ),
        ("RAY_KILL The actor is dead because it was killed by `ray.kill`.", AllocationState.LOST),
        ("NODE_DIED The actor died because its node has died.", AllocationState.LOST),
    ],
)
def test_an_actor_that_ended_itself_has_ended_and_every_other_end_is_a_loss(why: str, state: AllocationState) -> None:
    row = {"id": "1", "name": "n1", "state": "DEAD", "ended": 100.0, "why": why}
    seen = read_actor(row, {}, 101.0)
    assert seen is not None
    assert seen.state is state
