"""The allocations of a provider: nodes of its engine join, get agents, and its reasons are shown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tests.live.test_control_plane import job, obey, opened, settings, soon, state, submit

from shoal.core.topology import Node
from shoal.live.control_plane import ControlPlane
from shoal.live.engine_allocations import EngineAllocations
from shoal.live.home import open_control_plane
from shoal.provider.protocol import (
    Abilities,
    AgentCall,
    Allocation,
    AllocationState,
    EngineAway,
    EngineRefusal,
    Seen,
    Site,
)
from shoal.wire.messages import PROTOCOL, Hello


@dataclass
class FakeEngine:
    """An engine in memory, whose queue and answers the test decides."""

    sites: list[Site] = field(default_factory=list)
    there: dict[str, Seen] = field(default_factory=dict)
    abilities: Abilities = field(default_factory=Abilities)
    opened: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    away: bool = False
    refuses: str = ""
    asked: list[dict[str, int]] = field(default_factory=list)

    def survey(self) -> Sequence[Site]:
        if self.away:
            raise EngineAway("no answer within 5 s")
        return self.sites

    def seen(self) -> Sequence[Seen]:
        return list(self.there.values())

    def open(self, allocation: Allocation) -> None:
        self.opened.append(allocation.name)
        if self.refuses:
            raise EngineRefusal(self.refuses)
        ref = str(len(self.opened))
        self.there[ref] = Seen(allocation.name, ref, AllocationState.WAITING, why="Resources")

    def close(self, ref: str, grace: float) -> None:
        self.closed.append(ref)
        self.there[ref] = replace(self.there[ref], state=AllocationState.ENDED)

    def ask(self, kinds: Mapping[str, int]) -> None:
        self.asked.append(dict(kinds))

    def starts(self, ref: str) -> None:
        self.there[ref] = replace(self.there[ref], state=AllocationState.UP, why="")


def engine_allocations(plane: ControlPlane, engine: FakeEngine) -> EngineAllocations:
    def call(node: Node) -> AgentCall:
        return AgentCall(("--node", node.name), lambda: "secret")

    return EngineAllocations("slurm", engine, plane, call)


def notes(plane: ControlPlane) -> dict[str, str]:
    return {row.name: row.engine for row in plane.nodes(None)}


def test_a_node_of_the_engine_joins_gets_an_agent_and_runs_a_job(tmp_path: Path) -> None:
    with opened(tmp_path, "gpu:1x2") as plane:
        engine = FakeEngine([Site("gpu-0", "gpu", 2), Site("host-7", "gpu", 4)])
        allocations = engine_allocations(plane, engine)
        allocations.tick()
        assert engine.opened == ["gpu-0", "host-7"]
        allocations.tick()
        assert engine.opened == ["gpu-0", "host-7"]
        soon(lambda: notes(plane).get("host-7") == "slurm: waiting (Resources)")
        engine.starts("2")
        plane.hello(Hello(PROTOCOL, "host-7", "boot", "gpu", 4, "127.0.0.1"))
        allocations.tick()
        assert notes(plane)["host-7"] == ""
        (wide,) = submit(plane, job("wide", 4))
        obey(plane, "host-7")
        soon(lambda: state(plane, wide) == "running")


def test_an_engine_that_is_away_changes_nothing_and_is_named(tmp_path: Path) -> None:
    with opened(tmp_path, "gpu:1x2") as plane:
        engine = FakeEngine([Site("gpu-0", "gpu", 2)])
        allocations = engine_allocations(plane, engine)
        allocations.tick()
        engine.away, engine.sites = True, []
        allocations.tick()
        assert (engine.opened, engine.closed) == (["gpu-0"], [])
        assert notes(plane)["gpu-0"] == "slurm: did not answer: no answer within 5 s"
        engine.away, engine.sites = False, [Site("gpu-0", "gpu", 2)]
        allocations.tick()
        assert (engine.opened, notes(plane)["gpu-0"]) == (["gpu-0"], "slurm: waiting (Resources)")


def test_the_engines_refusal_is_shown_and_why_names_it(tmp_path: Path) -> None:
    with opened(tmp_path, "gpu:1x2") as plane:
        engine = FakeEngine([Site("host-7", "gpu", 4, state="up")], refuses="invalid account")
        engine_allocations(plane, engine).tick()
        (wide,) = submit(plane, job("wide", 4))
        soon(lambda: notes(plane).get("host-7") == "slurm: invalid account")
        soon(lambda: "host-7 (slurm: invalid account)" in plane.job(wide, None).change)


def test_a_node_that_is_down_in_its_engine_keeps_its_allocation_but_gets_no_new_one(tmp_path: Path) -> None:
    with opened(tmp_path, "gpu:1x2") as plane:
        engine = FakeEngine([Site("gpu-0", "gpu", 2), Site("host-7", "gpu", 4, state="down", why="Not responding")])
        allocations = engine_allocations(plane, engine)
        allocations.tick()
        assert engine.opened == ["gpu-0"]
        engine.sites[0] = Site("gpu-0", "gpu", 2, state="down", why="Not responding")
        allocations.tick()
        assert engine.closed == []
        soon(lambda: notes(plane).get("host-7") == "slurm: down (Not responding)")


def test_a_node_that_the_engine_drains_is_drained_and_given_back_when_it_has_no_runs(tmp_path: Path) -> None:
    with opened(tmp_path, "gpu:1x2") as plane:
        engine = FakeEngine([Site("gpu-0", "gpu", 2)])
        allocations = engine_allocations(plane, engine)
        (one,) = submit(plane, job("one", 1))
        allocations.tick()
        obey(plane, "gpu-0")
        soon(lambda: state(plane, one) == "running")
        engine.sites[0] = Site("gpu-0", "gpu", 2, state="draining", why="a fan")
        allocations.tick()
        soon(lambda: plane.nodes(None)[0].drained == "slurm: a fan")
        allocations.tick()
        assert engine.closed == []
        obey(plane, "gpu-0", (0,))
        soon(lambda: not plane.jobs(None))
        soon(lambda: not plane.members.has_runs("gpu-0"))
        allocations.tick()
        assert engine.closed == ["1"]
        engine.sites[0] = Site("gpu-0", "gpu", 2)
        allocations.tick()
        soon(lambda: plane.nodes(None)[0].drained == "")


def test_an_operators_removal_closes_the_allocation_and_the_node_does_not_join_again(tmp_path: Path) -> None:
    with opened(tmp_path, "gpu:2x2") as plane:
        engine = FakeEngine([Site("gpu-0", "gpu", 2), Site("gpu-1", "gpu", 2)])
        allocations = engine_allocations(plane, engine)
        allocations.tick()
        plane.members.remove("gpu-1").result(20)
        allocations.tick()
        allocations.tick()
        assert engine.closed == ["2"]
        assert list(notes(plane)) == ["gpu-0"]


def test_a_silent_agent_is_replaced_but_not_because_this_machine_slept(tmp_path: Path) -> None:
    with opened(tmp_path, "gpu:1x2") as plane:
        engine = FakeEngine([Site("gpu-0", "gpu", 2)])
        allocations = engine_allocations(plane, engine)
        allocations.silence = 0.0
        allocations.tick()
        engine.starts("1")
        allocations._ticked_at = -1000.0
        allocations.silence = 5.0
        allocations.tick()
        assert engine.closed == []
        allocations.silence = 0.0
        allocations.tick()
        assert engine.closed == ["1"]


def test_the_gpus_that_jobs_wait_for_are_asked_of_an_engine_that_can_bring_nodes(tmp_path: Path) -> None:
    with opened(tmp_path, "gpu:1x2") as plane:
        engine = FakeEngine([Site("gpu-0", "gpu", 2)], abilities=Abilities(scales=True))
        allocations = engine_allocations(plane, engine)
        jobs = submit(plane, job("runs", 2), job("waits", 2), job("waits", 1))
        soon(lambda: state(plane, jobs[0]) == "starting" and plane.waiting)
        allocations.tick()
        assert engine.asked == [{"gpu": 3}]
        allocations.tick()
        assert len(engine.asked) == 1, "an engine is not asked again at once"
        unable = FakeEngine([Site("gpu-0", "gpu", 2)])
        engine_allocations(plane, unable).tick()
        assert unable.asked == []


def test_gpus_that_running_elastic_jobs_lack_are_asked_for(tmp_path: Path) -> None:
    with opened(tmp_path, "gpu:1x2", "max-min") as plane:
        engine = FakeEngine([Site("gpu-0", "gpu", 2)], abilities=Abilities(scales=True))
        allocations = engine_allocations(plane, engine)
        one, other = submit(plane, job("one", 2, min_gpus=1, max_gpus=2), job("other", 2, min_gpus=1, max_gpus=2))
        soon(lambda: state(plane, one) == state(plane, other) == "starting")
        allocations.tick()
        assert engine.asked == [{"gpu": 2}]


def test_a_job_with_more_grace_than_its_engine_allows_has_a_warning_and_its_agent_the_limit(tmp_path: Path) -> None:
    with opened(tmp_path, "gpu:1x2") as plane:
        engine = FakeEngine([Site("gpu-0", "gpu", 2)], abilities=Abilities(longest_grace=30.0))
        allocations = engine_allocations(plane, engine)
        allocations.tick()
        engine.starts("1")
        allocations.tick()
        (allocation,) = allocations._wanted()
        assert allocation.call.arguments[-2:] == ("--longest-grace", "30")
        (slow,) = submit(plane, job(grace=60.0))
        soon(lambda: state(plane, slow) == "starting")
        sentence = "slurm leaves 30 s of its 60 s of grace where it ends an allocation itself"
        assert plane.job(slow, None).engine == ["gpu-0: slurm 1 runs", sentence]


def test_in_native_mode_a_run_gets_an_allocation_as_its_tenant_and_says_why_it_has_none_yet(tmp_path: Path) -> None:
    able = Abilities(native=True, users=True, images=True, sharing=False)
    with open_control_plane(replace(settings(tmp_path, "gpu:1x2"), abilities=able)) as plane:
        engine = FakeEngine([Site("gpu-0", "gpu", 2)], abilities=able, refuses="Invalid account")
        allocations = engine_allocations(plane, engine)
        allocations.run_call = lambda node, name, gpus: AgentCall(("--allocation", name), lambda: "secret")
        allocations.tick()
        soon(lambda: plane.cluster().up_gpus == 2)
        assert engine.opened == []
        (id,) = submit(plane, job(gpus=2, account="ml", image="torch:2", cpus=3))
        soon(lambda: state(plane, id) == "starting")
        allocations.tick()
        assert engine.opened == [f"{id}.1.gpu-0"]
        assert plane.job(id, None).change.startswith("gpu-0: slurm refused it: Invalid account")
        (wanted,) = allocations._wanted_for_runs()
        assert (wanted.owner, wanted.account, wanted.image, wanted.cpus, wanted.gpus) == ("ann", "ml", "torch:2", 6, 2)
        assert wanted.folders == (str(Path("jobs") / id), str(Path("nodes") / f"{id}.1.gpu-0"))
        plane.cancel(id, None).result(20)
        soon(lambda: state(plane, id) == "cancelled")
        allocations.tick()
        assert allocations._wanted_for_runs() == []


def test_in_native_mode_a_run_gets_its_allocation_at_once_and_not_at_the_next_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.live.engine_allocations.PERIOD", 3600.0)
    able = Abilities(native=True, users=True, images=True, sharing=False)
    with open_control_plane(replace(settings(tmp_path, "gpu:1x2"), abilities=able)) as plane:
        engine = FakeEngine([Site("gpu-0", "gpu", 2)], abilities=able)
        allocations = engine_allocations(plane, engine)
        allocations.run_call = lambda node, name, gpus: AgentCall(("--allocation", name), lambda: "secret")
        allocations.start()
        try:
            soon(lambda: plane.cluster().up_gpus == 2)
            (id,) = submit(plane, job(gpus=2))
            soon(lambda: engine.opened == [f"{id}.1.gpu-0"])
        finally:
            allocations.stop()
