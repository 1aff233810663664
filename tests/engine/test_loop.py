"""The loop with a scripted backend: which batches lead to decisions, and in which order the eight steps run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from shoal.core.commands import Command, Decided, Resize, Start, Stop
from shoal.core.decision import Decision, Grant, Refusal
from shoal.core.events import EventBatch, JobMeasured, JobStarted, JobStopped, JobSubmitted
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Placement, parse_cluster
from shoal.engine.loop import Loop
from shoal.engine.moves import StopStartPlanner
from shoal.engine.state import State
from shoal.perf.catalog import catalog
from shoal.perf.model import ProfiledModel
from shoal.placement.packed import PackedPlacer
from shoal.testing.builders import job

FOUR = Placement(((0, 4),))


@dataclass
class Script:
    """A backend that reports these batches and keeps what it was sent; also a journal. ``log`` has both in order."""

    batches: list[EventBatch]
    waited_until: list[float] = field(default_factory=list)
    log: list[object] = field(default_factory=list)

    def wait(self, until: float) -> EventBatch:
        self.waited_until.append(until)
        return self.batches.pop(0) if self.batches else EventBatch(until, (), over=True)

    def send(self, commands: Sequence[Command]) -> None:
        self.log.append(("sent", tuple(commands)))

    def record_events(self, batch: EventBatch) -> None:
        self.log.append(batch)

    def record_decision(self, decided: Decided) -> None:
        self.log.append(decided)


@dataclass(frozen=True)
class Grants:
    """A policy that grants GPUs by job and cycle, asks for a review after ``review`` seconds, and counts in carry."""

    by_cycle: Sequence[Mapping[str, int]]
    review: float = inf

    def decide(self, snapshot: Snapshot) -> Decision:
        wanted = self.by_cycle[snapshot.cycle]
        verdicts = {name: Grant(wanted[name]) if name in wanted else Refusal() for name in snapshot.ids}
        carry = (snapshot.carry if isinstance(snapshot.carry, int) else 0) + 1
        return Decision(verdicts, snapshot.now + self.review, carry)


def loop_of(script: Script, policy: Grants) -> Loop:
    cluster = parse_cluster("gpu:1x4")
    state = State(cluster, ProfiledModel(cluster, catalog()))
    return Loop(script, state, policy, PackedPlacer(), StopStartPlanner(), script)


def submitted(at: float, name: str, gpus: int = 4) -> EventBatch:
    return EventBatch(at, (JobSubmitted(at, job(name, at, gpus, 100).spec()),))


def commands_of(script: Script) -> list[tuple[Command, ...]]:
    return [record.commands for record in script.log if isinstance(record, Decided)]


def test_the_stop_of_a_run_starts_the_job_that_waits_for_it() -> None:
    script = Script(
        [
            submitted(0.0, "a"),
            EventBatch(1.0, (JobStarted(1.0, 0, 1, 1.0, 0.0),)),
            submitted(2.0, "b"),  # a is refused, and stops
            submitted(3.0, "c"),  # a is granted its GPUs again while it still stops
            EventBatch(4.0, (JobMeasured(4.0, 0, 1, 1.0, 1.0),)),
            EventBatch(9.0, (JobStopped(9.0, 0, 1, 2.0),)),
        ]
    )
    loop = loop_of(script, Grants([{"a": 4}, {}, {"a": 4}, {"a": 4}]))
    loop.run()
    assert commands_of(script) == [(Start(0, 1, FOUR),), (Stop(0, 1),), (), (Start(0, 2, FOUR),)]
    assert loop.state.cycle == 4


def test_a_run_that_has_stopped_is_only_folded_if_no_job_waits_for_it() -> None:
    script = Script([submitted(0.0, "a"), submitted(2.0, "b"), EventBatch(9.0, (JobStopped(9.0, 0, 1, 2.0),))])
    loop = loop_of(script, Grants([{"a": 4}, {"b": 4}]))
    loop.run()
    assert commands_of(script) == [(Start(0, 1, FOUR),), (Stop(0, 1), Start(1, 1, FOUR))]
    assert (loop.state.cycle, loop.state.now) == (2, 9.0)


def test_events_and_decisions_are_recorded_before_commands_are_sent() -> None:
    batch = submitted(0.0, "a")
    script = Script([batch])
    loop = loop_of(script, Grants([{"a": 4}]))
    assert loop.cycle()
    decided = script.log[1]
    assert isinstance(decided, Decided)
    assert script.log == [batch, decided, ("sent", (Start(0, 1, FOUR),))]
    assert (loop.state.carry, loop.state.freeze().jobs["a"].held) == (1, 4)
    assert not loop.cycle()
    assert len(script.log) == 3, "a batch that ends the run is not recorded"


def test_the_backend_is_asked_to_wait_until_the_next_review() -> None:
    script = Script([submitted(0.0, "a"), EventBatch(30.0, ()), EventBatch(45.0, ())])
    loop = loop_of(script, Grants([{"a": 4}, {"a": 4}], review=30.0))
    loop.run()
    assert script.waited_until == [inf, 30.0, 60.0, 60.0]
    assert loop.state.cycle == 2, "at t = 45 no decision is due"


def test_a_shrunk_job_is_resized_before_another_starts() -> None:
    script = Script([submitted(0.0, "a"), submitted(5.0, "b", gpus=2)])
    elastic = job("a", 0, 4, 100, min_gpus=1, max_gpus=4).spec()
    script.batches[0] = EventBatch(0.0, (JobSubmitted(0.0, elastic),))
    loop_of(script, Grants([{"a": 4}, {"a": 2, "b": 2}])).run()
    assert commands_of(script)[1] == (Resize(0, 2, Placement(((0, 2),))), Start(1, 1, Placement(((0, 2),))))
