"""The story that every provider is held to, with faults: real agents, a real control plane and a job that saves.

``run_story(make_engine, folder)`` opens agents on two nodes of an engine, runs a gang over both, and then has the
engine fail in several ways. The first broken promise raises ``AssertionError``. The job's own lock file proves that no
two incarnations overlap; at the end the journal is replayed.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

from shoal.core.topology import Node, topology_of
from shoal.live.control_plane import ControlPlane
from shoal.live.engine_allocations import EngineAllocations, sites_as_nodes
from shoal.live.home import Settings
from shoal.provider.local import agent_call
from shoal.provider.protocol import Abilities, AgentCall, Allocation, Provider, Seen, Site
from shoal.scenario.replay import replay_file
from shoal.scenario.scenario import Scenario
from shoal.serve.service import Address, RunningService, run_service
from shoal.wire.messages import NewNode, Submission

PATIENCE_SECONDS = 120.0
"""Seconds that anything may take on a busy machine before it counts as never."""

_SILENCE_SECONDS = 6.0
"""Seconds of silence after which an allocation is closed; agents report every 3.3 s."""

JOB = """
import fcntl, json, os, signal, sys, time
from pathlib import Path

folder, rank = Path(os.environ["SHOAL_DIR"]), os.environ["RANK"]
lock = open(folder / f"lock-{rank}", "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    (folder / "overlap").write_text(os.environ["SHOAL_INCARNATION"])
    sys.exit(3)
state = folder / f"state-{rank}"
done = json.loads(state.read_text())["done"] if state.exists() else 0

def save(*_):
    state.write_text(json.dumps({"done": done, "incarnation": os.environ["SHOAL_INCARNATION"]}))
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
while True:
    done += 1
    (folder / f".alive-{rank}").write_text(os.environ["SHOAL_INCARNATION"])
    (folder / f".alive-{rank}").replace(folder / f"alive-{rank}")
    time.sleep(0.05)
"""


class EngineUnderTest(Protocol):
    """An engine with at least two nodes of one kind and size, and the faults that the story needs."""

    @property
    def provider(self) -> Provider:
        """The provider under test."""
        ...

    def close_as_stranger(self, ref: str) -> None:
        """End an allocation as another person would, with the engine's usual warning."""
        ...

    def away(self) -> AbstractContextManager[None]:
        """Make the engine not answer while the context is open."""
        ...


EngineMaker: TypeAlias = Callable[[Path], EngineUnderTest]


@dataclass(slots=True)
class RecordingProvider:
    """Passes every call on and counts those that change something."""

    inner: Provider
    opened: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)

    @property
    def abilities(self) -> Abilities:
        """Those of the provider."""
        return self.inner.abilities

    def survey(self) -> Sequence[Site]:
        """Return the provider's nodes."""
        return self.inner.survey()

    def seen(self) -> Sequence[Seen]:
        """Return the provider's allocations."""
        return self.inner.seen()

    def open(self, allocation: Allocation) -> None:
        """Open an allocation and note its name."""
        self.opened.append(allocation.name)
        self.inner.open(allocation)

    def close(self, ref: str, grace: float) -> None:
        """Close an allocation and note its ref."""
        self.closed.append(ref)
        self.inner.close(ref, grace)

    def ask(self, kinds: Mapping[str, int]) -> None:
        """Ask the inner provider for nodes of these kinds."""
        self.inner.ask(kinds)


@dataclass(slots=True)
class ProviderStory:
    """A cluster on the engine, and the steps of the story on it."""

    engine: EngineUnderTest
    made: RunningService
    provider: RecordingProvider
    folder: Path
    allocations: EngineAllocations = field(init=False)
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each step took."""

    def __post_init__(self) -> None:
        self.allocations = self.new_allocations()

    @property
    def plane(self) -> ControlPlane:
        """The control plane."""
        return self.made.control_plane

    def new_allocations(self) -> EngineAllocations:
        """Return allocations without memory, as after a restart of the control plane."""
        return EngineAllocations("engine", self.provider, self.plane, self.call)

    def call(self, node: Node) -> AgentCall:
        """Return how to start the agent of a node."""
        return agent_call(self.made.listening.url, self.made.agent_token, node, home=self.folder / "home")

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Query the engine until the condition holds, and note how long that took."""
        began = time.monotonic()
        while True:
            self.allocations.tick()
            if condition():
                break
            if time.monotonic() > began + PATIENCE_SECONDS:
                raise AssertionError(f"never came true: {what}; nodes {self.plane.nodes(None)}")
            time.sleep(0.05)
        self.seconds[what] = time.monotonic() - began

    def up(self) -> set[str]:
        """Return the nodes that are up."""
        return {row.name for row in self.plane.nodes(None) if row.up}

    def submit(self, name: str, gpus: int) -> str:
        """Submit the job; it saves when it is warned."""
        command = [sys.executable, "-c", JOB]
        wanted = Submission(command=command, name=name, gpus=gpus, preemptible="yes", grace=20.0)
        return self.plane.submit([wanted], "story").result(PATIENCE_SECONDS)[0]

    def runs_as(self, job: str, incarnation: int) -> bool:
        """Return whether every rank of a job runs as this incarnation."""
        row = self.plane.job(job, None)
        alive = [*(self.folder / "home" / "jobs" / job).glob("alive-*")]
        written = [path.read_text() for path in alive]
        return row.job.state == "running" and len(alive) == row.job.gpus_held and set(written) == {str(incarnation)}

    def where(self, job: str) -> set[str]:
        """Return the nodes of a job."""
        return set(self.plane.job(job, None).job.nodes)

    def saved(self, job: str) -> bool:
        """Return whether rank 0 of a job has saved progress."""
        state = self.folder / "home" / "jobs" / job / "state-0"
        return state.exists() and json.loads(state.read_text())["done"] > 0

    def ref_of(self, node: str) -> str:
        """Return the engine's identifier of the open allocation on a node; empty if there is none."""
        return next((one.ref for one in self.provider.seen() if one.name == node and one.state.open), "")


def run_story(make_engine: EngineMaker, folder: Path, away_seconds: float = 0.5) -> dict[str, float]:
    """Run the story; return the seconds that each step took. The caller ends the engine.

    In one step the engine does not answer for ``away_seconds``.
    """
    engine = make_engine(folder)
    sites = [site for site in engine.provider.survey() if site.state == "up"][:2]
    cluster = topology_of(sites_as_nodes(sites), {})
    settings = Settings(folder / "home", Scenario(cluster, "fifo"), lease=10.0, first_retry=0.2)
    with run_service(settings, Address(), embedded=True) as made:
        story = ProviderStory(engine, made, RecordingProvider(engine.provider), folder)
        names = {site.name for site in sites}
        story.until(lambda: story.up() == names, "two allocations are opened and their agents connect")
        assert sorted(story.provider.opened) == sorted(names), "an allocation was opened twice"
        _gang_and_faults(story, cluster.total_gpus, names, away_seconds)
        _stranger(story, sites[0].gpus, names)
        _removed_and_added(story, sites[0], names)
        _silent(story, sites[0].name)
        overlaps = [*(folder / "home" / "jobs").glob("*/overlap")]
        assert not overlaps, f"two incarnations ran at once: {overlaps}"
        _leave(story)
    replay_file(folder / "home")
    return story.seconds


def _gang_and_faults(story: ProviderStory, gpus: int, names: set[str], away_seconds: float) -> None:
    gang = story.submit("gang", gpus)
    story.until(lambda: story.runs_as(gang, 1), "a gang runs over both nodes")
    assert story.where(gang) == names
    before = len(story.provider.opened), len(story.provider.closed)
    with story.engine.away():
        back = time.monotonic() + away_seconds
        while time.monotonic() < back:
            story.allocations.tick()
            assert story.allocations.away, "an engine that is away was not noticed"
            assert story.runs_as(gang, 1), "the gang did not go on without the engine"
            time.sleep(0.1)
    story.allocations = story.new_allocations()  # the control plane was killed after it had opened them
    for _ in range(3):
        story.allocations.tick()
    assert (len(story.provider.opened), len(story.provider.closed)) == before, "something was opened or closed"
    assert story.runs_as(gang, 1), "the gang did not go on"
    leaving = sorted(names)[0]
    story.engine.close_as_stranger(story.ref_of(leaving))
    story.until(lambda: story.runs_as(gang, 2), "a gang of which a stranger closed one allocation runs again")
    assert story.saved(gang), "the gang did not save"
    story.plane.cancel(gang, None).result(PATIENCE_SECONDS)
    story.until(lambda: not story.plane.jobs(None), "the gang is cancelled")


def _stranger(story: ProviderStory, gpus: int, names: set[str]) -> None:
    single = story.submit("single", gpus)
    story.until(lambda: story.runs_as(single, 1), "a job runs on one node")
    (left,) = story.where(single)
    story.engine.close_as_stranger(story.ref_of(left))
    story.until(lambda: story.runs_as(single, 2), "a job whose allocation a stranger closed runs elsewhere")
    assert story.where(single) == names - {left}, "it was started on the node that was leaving"
    assert story.saved(single), "it did not save"
    assert story.plane.job(single, None).crashes == 0, "it counted as a crash"
    story.until(lambda: story.up() == names, "the allocation that a stranger closed is opened again")
    story.plane.cancel(single, None).result(PATIENCE_SECONDS)
    story.until(lambda: not story.plane.jobs(None), "the job is cancelled")


def _removed_and_added(story: ProviderStory, site: Site, names: set[str]) -> None:
    story.plane.members.remove(site.name).result(PATIENCE_SECONDS)
    story.until(
        lambda: not any(one.name == site.name and one.state.open for one in story.provider.seen()),
        "the allocation of a removed node is closed",
    )
    story.plane.members.add(NewNode(site.name, site.kind, site.gpus, site.rack)).result(PATIENCE_SECONDS)
    story.until(lambda: story.up() == names, "a node that is added again is opened again")


def _silent(story: ProviderStory, node: str) -> None:
    """Replace the agent of a node by one that reaches no control plane: its allocation is closed and opened again."""
    real = story.call

    def unreachable(one: Node) -> AgentCall:
        call = real(one)
        words = list(call.arguments)
        words[words.index("--server") + 1] = "http://127.0.0.1:9"
        return AgentCall(tuple(words), call.token) if one.name == node else call

    story.allocations.call, story.allocations.silence = unreachable, _SILENCE_SECONDS
    story.engine.close_as_stranger(before := story.ref_of(node))
    story.until(lambda: story.ref_of(node) not in ("", before), "an agent that reaches no control plane is started")
    silent = story.ref_of(node)
    story.until(lambda: silent in story.provider.closed, "an allocation whose agent is silent is closed")
    story.allocations.call = real
    story.until(lambda: node in story.up(), "it is opened again, with an agent that connects")


def _leave(story: ProviderStory) -> None:
    """Close every allocation in good order."""
    for one in story.provider.seen():
        if one.state.open:
            story.provider.inner.close(one.ref, 20.0)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(one.state.open for one in story.provider.seen()):
        assert time.monotonic() < deadline, "an allocation did not close"
        time.sleep(0.05)
