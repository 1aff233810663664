"""What jobs say of themselves becomes an event where it can be true and is news, and not otherwise."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from shoal.core.batch_limits import BatchLimits
from shoal.core.commands import Start, Stop
from shoal.core.events import BatchChanged, Event, JobMeasured, JobProfiled, JobStarted, JobStopped
from shoal.core.goodput import GoodputReport, StepFit
from shoal.core.job import ADAPTIVE, BatchSetting, JobSpec, Launch
from shoal.core.topology import Placement, parse_cluster
from shoal.live.backend import LiveBackend
from shoal.live.report_filter import credible, differs
from shoal.wire.messages import PROTOCOL, AgentReport, Hello, RankExit, RunReport, SessionReport

FIT = StepFit((0.01, 0.001), (0.002, 0.0), (0.0, 0.0), (0.0, 0.0), 2.0, 64, gpus=2, nodes=1, error=0.01)
SAID = GoodputReport((("gpu", FIT),), 100.0, 128, 2, BatchSetting(128, 1))

IMPOSSIBLE = {
    "no fit": replace(SAID, fits=()),
    "one kind twice": replace(SAID, fits=(("gpu", FIT), ("gpu", FIT))),
    "a noise below nothing": replace(SAID, noise=-1.0),
    "a noise that is no number": replace(SAID, noise=float("nan")),
    "an endless time": replace(SAID, fits=(("gpu", replace(FIT, compute=(float("inf"), 0.0))),)),
    "steps of almost no time": replace(SAID, fits=(("gpu", replace(FIT, compute=(1e-320, 0.0))),)),
    "steps that take no time": replace(SAID, fits=(("gpu", replace(FIT, compute=(0.0, 0.0))),)),
    "an overlap out of range": replace(SAID, fits=(("gpu", replace(FIT, gamma=11.0)),)),
    "no GPU ever": replace(SAID, seen_gpus=0),
    "no batch": replace(SAID, batch=BatchSetting(0)),
    "a noise of no batch": replace(SAID, noise_batch=0),
    "a noise without end": replace(SAID, noise=float("inf")),
    "an accumulation below nothing": replace(SAID, batch=BatchSetting(128, -1)),
    "too many kinds": replace(SAID, fits=tuple((f"kind-{n}", FIT) for n in range(65))),
    "a kind without a name": replace(SAID, fits=(("", FIT),)),
    "a kind with an endless name": replace(SAID, fits=(("k" * 65, FIT),)),
    "one of two fits impossible": replace(SAID, fits=(("gpu", FIT), ("big", replace(FIT, gamma=0.5)))),
    "a time below nothing": replace(SAID, fits=(("gpu", replace(FIT, rack=(-0.1, 0.0))),)),
    "an error that is no number": replace(SAID, fits=(("gpu", replace(FIT, error=float("nan"))),)),
    "no sample on a GPU": replace(SAID, fits=(("gpu", replace(FIT, most_local=0)),)),
    "fewer GPUs than none": replace(SAID, fits=(("gpu", replace(FIT, gpus=-1)),)),
    "more GPUs than a number in the journal": replace(SAID, seen_gpus=2**64),
    "a batch beyond the largest": replace(SAID, batch=BatchSetting(10_000_001)),
    "more accumulation than the largest": replace(SAID, batch=BatchSetting(128, 2**64)),
    "a noise of a batch beyond the largest": replace(SAID, noise_batch=2**64),
    "a noise beyond the largest": replace(SAID, noise=1e16),
    "a time beyond the longest": replace(SAID, fits=(("gpu", replace(FIT, compute=(1e16, 0.0))),)),
    "more samples on a GPU than the most": replace(SAID, fits=(("gpu", replace(FIT, most_local=2**64)),)),
    "more GPUs of a kind than the most": replace(SAID, fits=(("gpu", replace(FIT, gpus=2**64)),)),
    "more nodes of a kind than the most": replace(SAID, fits=(("gpu", replace(FIT, nodes=2**64)),)),
    "fewer nodes than none": replace(SAID, fits=(("gpu", replace(FIT, nodes=-1)),)),
}

JUST_POSSIBLE = {
    "as many kinds as may be": replace(SAID, fits=tuple((f"kind-{n}", FIT) for n in range(64))),
    "a name as long as may be": replace(SAID, fits=(("k" * 64, FIT),)),
    "the smallest figures": replace(SAID, noise=0.0, noise_batch=1, seen_gpus=1, batch=BatchSetting(1, 0)),
    "the smallest fit": replace(SAID, fits=(("gpu", replace(FIT, gamma=1.0, most_local=1, gpus=0, nodes=0)),)),
    "the largest overlap": replace(SAID, fits=(("gpu", replace(FIT, gamma=10.0)),)),
    "the largest counts": replace(SAID, noise_batch=10_000_000, seen_gpus=10_000_000, batch=BatchSetting(10_000_000)),
    "the most accumulation": replace(SAID, batch=BatchSetting(128, 10_000_000)),
    "the largest noise": replace(SAID, noise=1e15),
    "the longest time": replace(SAID, fits=(("gpu", replace(FIT, network=(1e15, 0.0))),)),
    "the largest fit": replace(
        SAID, fits=(("gpu", replace(FIT, most_local=10_000_000, gpus=10_000_000, nodes=10_000_000)),)
    ),
    "the shortest step": replace(SAID, fits=(("gpu", replace(FIT, compute=(1e-12, 0.0))),)),
    "an exact fit that takes no time to exchange": replace(
        SAID, fits=(("gpu", replace(FIT, node=(0.0, 0.0), error=0.0)),)
    ),
    "steps whose time is all in the batch": replace(SAID, fits=(("gpu", replace(FIT, compute=(0.0, 0.001))),)),
}


@pytest.mark.parametrize("said", JUST_POSSIBLE.values(), ids=JUST_POSSIBLE.keys())
def test_what_can_just_be_true_is_believed(said: GoodputReport) -> None:
    assert credible(said)


@pytest.mark.parametrize("said", IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
def test_reports_that_cannot_be_true_are_ignored(said: GoodputReport) -> None:
    assert credible(SAID)
    assert not credible(said)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (SAID, False),
        (replace(SAID, noise=104.0), False),
        (replace(SAID, noise=110.0), True),
        (replace(SAID, noise=95.5), False),
        (replace(SAID, noise=94.5), True),
        (replace(SAID, noise_batch=256), False),
        (replace(SAID, fits=(("gpu", replace(FIT, gpus=3)),)), True),
        (replace(SAID, fits=(("gpu", replace(FIT, nodes=2)),)), True),
        (replace(SAID, fits=(("gpu", replace(FIT, compute=(0.01, 0.0011))),)), True),
        (replace(SAID, fits=(("gpu", replace(FIT, node=(0.003, 0.0))),)), True),
        (replace(SAID, fits=(("gpu", replace(FIT, network=(0.1, 0.0))),)), True),
        (replace(SAID, fits=(("gpu", replace(FIT, rack=(0.1, 0.0))),)), True),
        (replace(SAID, seen_gpus=4), True),
        (replace(SAID, batch=BatchSetting(256, 1)), True),
        (replace(SAID, fits=(("gpu", replace(FIT, compute=(0.0101, 0.001))),)), False),
        (replace(SAID, fits=(("gpu", replace(FIT, compute=(0.03, 0.001))),)), True),
        (replace(SAID, fits=(("gpu", FIT), ("other", FIT))), True),
    ],
)
def test_only_what_differs_from_the_last_report_is_sent_again(said: GoodputReport, told: bool) -> None:
    assert differs(None, said)
    assert differs(SAID, said) == told


@dataclass(slots=True)
class Clock:
    time: float = 0.0

    def now(self) -> float:
        return self.time


@dataclass(slots=True)
class Stage:
    """One job that runs on one node, and what the ring hears of it."""

    backend: LiveBackend
    clock: Clock

    def say(self, after: float, **said: Any) -> list[Event]:
        """Some seconds later the job's node reports; what the ring hears."""
        self.clock.time += after
        run = RunReport(job=0, incarnation=1, phase="running", **said)
        self.backend.sync(AgentReport(protocol=PROTOCOL, node="gpu-0", boot="b", known=0, runs=[run]))
        return list(self.backend.wait(self.clock.time).events)


def stage(batch: BatchSetting | None, limits: BatchLimits | None = None) -> Stage:
    clock = Clock()
    cluster = parse_cluster("gpu:1x2")
    backend = LiveBackend(cluster, clock, lambda *_: 1.0)
    backend.hello(Hello(PROTOCOL, "gpu-0", "b", "gpu", 2, "here"))
    spec = JobSpec("job", 0.0, 2, 100.0, 2, 2, batch_size=64, limits=limits)
    backend.submit([(spec, Launch("job", ("train",)))], None)
    backend.wait(0.0)
    backend.send([Start(0, 1, Placement(((0, 2),)), batch)])
    made = Stage(backend, clock)
    assert [type(event) for event in made.say(1.0, done=0.0)] == [JobStarted]
    return made


def test_a_batch_size_that_the_script_changed_is_reported_with_its_new_speed_once() -> None:
    it = stage(None)
    assert it.say(1.0, done=2.0, session=SessionReport(rate=2.0, batch_size=64)) == []
    # The change is told when its speed is known.
    assert it.say(1.0, done=4.0, session=SessionReport(batch_size=128)) == []
    changed = it.say(1.0, done=7.0, session=SessionReport(rate=3.0, batch_size=128))
    assert changed == [BatchChanged(4.0, 0, 1, 3.0, 7.0, 128)]
    assert it.say(1.0, done=10.0, session=SessionReport(rate=3.0, batch_size=128)) == []


def test_a_script_that_begins_with_another_batch_size_than_declared_has_changed_it() -> None:
    it = stage(None)
    changed = it.say(1.0, done=3.0, session=SessionReport(rate=3.0, batch_size=128))
    assert changed == [BatchChanged(2.0, 0, 1, 3.0, 3.0, 128)]


def test_a_job_that_adapts_reports_a_profile_and_gets_its_limits() -> None:
    it = stage(ADAPTIVE, BatchLimits(64, 512, 1, 64))
    [order] = it.backend.sync(AgentReport(protocol=PROTOCOL, node="gpu-0", boot="b", known=0, runs=[])).runs
    assert (order.work, order.batch, order.limits) == (100.0, ADAPTIVE, BatchLimits(64, 512, 1, 64))
    said = SessionReport(rate=2.0, batch_size=128, profile=SAID)
    assert it.say(1.0, done=2.0, session=said) == [JobProfiled(2.0, 0, 1, 2.0, 2.0, SAID, urgent=True)]
    noisier = replace(SAID, noise=200.0)
    again = SessionReport(rate=2.0, batch_size=128, profile=noisier)
    assert it.say(1.0, done=4.0, session=again) == []
    assert it.say(5.0, done=14.0, session=again) == [JobProfiled(8.0, 0, 1, 2.0, 14.0, noisier, urgent=False)]
    assert it.say(6.0, done=26.0, session=again) == []


def test_what_a_job_that_was_killed_did_without_a_word_is_not_counted() -> None:
    it = stage(None)
    it.backend.send([Stop(0, 1)])
    it.clock.time += 50.0
    ended = RunReport(job=0, incarnation=1, phase="ended", exits=[RankExit(0, -15), RankExit(1, -15)])
    it.backend.sync(AgentReport(protocol=PROTOCOL, node="gpu-0", boot="b", known=0, runs=[ended]))
    [stopped] = it.backend.wait(60.0).events
    assert isinstance(stopped, JobStopped)
    assert (stopped.at, stopped.done) == (51.0, 0.0)


def test_a_job_that_loaded_for_long_is_taken_to_be_where_it_says_it_is() -> None:
    it = stage(None)
    assert it.say(8.0, done=0.0) == []
    assert it.say(1.0, done=1.0) == [JobMeasured(10.0, 0, 1, 1.0, 1.0)]
    assert [event for at in range(2, 30) for event in it.say(1.0, done=float(at))] == []


def test_a_job_is_expected_to_go_as_fast_as_it_was_measured_before_it_was_stopped() -> None:
    it = stage(None)
    heard = [event for at in range(1, 7) for event in it.say(1.0, done=3.0 * at)]
    assert heard == [JobMeasured(7.0, 0, 1, 3.0, 18.0)]
    it.backend.send([Stop(0, 1)])
    exits = [RankExit(0, 0, warned=True), RankExit(1, 0, warned=True)]
    ended = RunReport(job=0, incarnation=1, phase="ended", done=20.0, saved=20.0, exits=exits)
    it.backend.sync(AgentReport(protocol=PROTOCOL, node="gpu-0", boot="b", known=0, runs=[ended]))
    it.backend.wait(it.clock.time)
    it.backend.send([Start(0, 2, Placement(((0, 2),)), None)])
    again = RunReport(job=0, incarnation=2, phase="running")
    it.backend.sync(AgentReport(protocol=PROTOCOL, node="gpu-0", boot="b", known=0, runs=[again]))
    assert it.backend.wait(it.clock.time).events == (JobStarted(7.0, 0, 2, 3.0, 20.0),)
