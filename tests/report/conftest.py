"""A journal told by hand, whose every figure is worked out in ``test_metrics``."""

from collections.abc import Callable

import pytest

from shoal.core.commands import Command, Decided, Start, Stop
from shoal.core.events import Event, EventBatch, JobCompleted, JobStarted, JobStopped, JobSubmitted
from shoal.core.job import JobSpec
from shoal.core.topology import Placement, parse_cluster
from shoal.store.journal import MemoryJournal

Telling = Callable[[float, list[Event], list[Command]], None]


def begin(cluster: str, prices: dict[str, float] | None = None, **settings: object) -> MemoryJournal:
    topology = parse_cluster(cluster, prices=prices)
    nodes = [[n.name, n.kind, n.gpus, n.rack] for n in topology.nodes]
    return MemoryJournal.begin({"cluster_nodes": nodes, "prices": prices or {}, "cluster": cluster, **settings})


def spec(name: str, submitted: float, gpus: int, work: float | None, **more: object) -> JobSpec:
    return JobSpec(name, submitted, gpus, work, min_gpus=gpus, max_gpus=gpus, **more)  # type: ignore[arg-type]


def teller(journal: MemoryJournal) -> Telling:
    def tell(now: float, events: list[Event], commands: list[Command]) -> None:
        journal.record_events(EventBatch(now, tuple(events)))
        journal.record_decision(Decided(0, float("inf"), tuple(commands)))

    return tell


@pytest.fixture
def new_journal() -> Callable[..., MemoryJournal]:
    return begin


@pytest.fixture
def new_spec() -> Callable[..., JobSpec]:
    return spec


@pytest.fixture
def telling() -> Callable[[MemoryJournal], Telling]:
    return teller


@pytest.fixture
def three_jobs() -> MemoryJournal:
    """Four GPUs at 3.6 $/h. A (2 GPUs, 10 s) runs 0–10; B (4, 10 s) waits and runs 10–20; C (2, 5 s), submitted at 5,
    runs 5–8, is stopped, and runs 20–22. B and C are one app."""
    journal = begin("v100:1x4", {"v100": 3.6}, policy="by-hand", seed=7, workload="three", knowledge="oracle")
    tell = teller(journal)
    a, b = spec("a", 0.0, 2, 10.0), spec("b", 0.0, 4, 10.0, app="search", tenant="x")
    c = spec("c", 5.0, 2, 5.0, app="search", tenant="x")
    two, four = Placement(((0, 2),)), Placement(((0, 4),))
    tell(0.0, [JobSubmitted(0.0, a), JobSubmitted(0.0, b)], [Start(0, 1, two)])
    tell(5.0, [JobStarted(0.0, 0, 1, 1.0, 0.0), JobSubmitted(5.0, c)], [Start(2, 1, two)])
    tell(8.0, [JobStarted(5.0, 2, 1, 1.0, 0.0)], [Stop(2, 1)])
    tell(10.0, [JobStopped(8.0, 2, 1, 3.0), JobCompleted(10.0, 0, 1, 10.0)], [Start(1, 1, four)])
    tell(20.0, [JobStarted(10.0, 1, 1, 1.0, 0.0), JobCompleted(20.0, 1, 1, 10.0)], [Start(2, 2, two)])
    tell(22.0, [JobStarted(20.0, 2, 2, 1.0, 3.0), JobCompleted(22.0, 2, 2, 5.0)], [])
    return journal
