"""What is said of a provider's allocations: log lines, notes on nodes, lines of jobs, causes of ends."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.live.test_control_plane import job, opened, settings, soon, state, submit
from tests.live.test_engine_allocations import FakeEngine, engine_allocations, notes

from shoal.core.events import EventBatch, NodeLost, NodeReturned
from shoal.core.topology import Node
from shoal.live.clock import Clock
from shoal.live.control_plane import ControlPlane
from shoal.live.engine_allocations import EngineAllocations, sites_as_nodes
from shoal.live.home import open_control_plane
from shoal.live.run_allocations import engine_words
from shoal.provider.protocol import Abilities, AgentCall, Allocation, AllocationState, Seen, Site
from shoal.store.journal import JournalFile

NATIVE = Abilities(native=True, users=True, images=True, sharing=False)


@dataclass
class Ahead:
    """A clock that the test sets ahead, or stops at a time."""

    clock: Clock
    seconds: float = 0.0
    stopped_at: float | None = None

    def now(self) -> float:
        return self.clock.now() + self.seconds if self.stopped_at is None else self.stopped_at


def set_ahead(plane: ControlPlane) -> Ahead:
    clock = Ahead(plane.backend.clock)
    plane.backend.clock = clock
    return clock


@contextmanager
def native(folder: Path, cluster: str = "gpu:1x2", longest_grace: float | None = None) -> Iterator[ControlPlane]:
    able = replace(NATIVE, longest_grace=longest_grace)
    with open_control_plane(replace(settings(folder, cluster, lease=3600.0), abilities=able)) as plane:
        yield plane


def native_allocations(plane: ControlPlane, engine: FakeEngine) -> EngineAllocations:
    def call(node: Node, name: str, gpus: int) -> AgentCall:
        return AgentCall(("--node", node.name, "--allocation", name, "--gpus", str(gpus)), lambda: "secret")

    made = EngineAllocations(
        "slurm", engine, plane, lambda node: AgentCall((), lambda: ""), run_call=call, home=Path("/home")
    )
    made.tick()
    soon(lambda: plane.cluster().up_gpus == 2 * len(engine.sites))
    return made


def started(plane: ControlPlane, gpus: int = 2, grace: float = 10.0) -> str:
    (id,) = submit(plane, job(gpus=gpus, grace=grace))
    soon(lambda: state(plane, id) == "starting")
    return id


def logged(caplog: pytest.LogCaptureFixture, *fields: str) -> list[tuple[object, ...]]:
    """The level, message and these fields of each log record on allocations."""
    records = [record for record in caplog.records if record.name == "shoal.live.engine_allocations"]
    return [(each.levelname, each.getMessage(), *(getattr(each, field) for field in fields)) for each in records]


def test_an_engine_that_goes_away_is_logged_once_until_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path, "gpu:1x2") as plane:
        engine = FakeEngine([Site("gpu-0", "gpu", 2)], away=True)
        allocations = engine_allocations(plane, engine)
        for away in (True, True, False, True):
            engine.away = away
            allocations.tick()
    line = ("WARNING", "engine away", "slurm", "no answer within 5 s")
    assert logged(caplog, "engine", "error") == [line, line]


def test_each_refusal_of_the_engine_and_each_closing_of_an_allocation_is_logged_with_its_cause(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with opened(tmp_path, "gpu:1x2") as plane:
        engine = FakeEngine([Site("gpu-0", "gpu", 2)], refuses="invalid account")
        allocations = engine_allocations(plane, engine)
        allocations.tick()
        engine.there["7"] = Seen("elsewhere", "7", AllocationState.UP)
        allocations.tick()
    assert engine.closed == ["7"]
    assert [record[:2] for record in logged(caplog)] == [
        ("WARNING", "engine refuses"), ("INFO", "allocation closes"),
    ]  # fmt: skip
    refused, closes = (record for record in caplog.records if record.name == "shoal.live.engine_allocations")
    assert (vars(refused)["allocation"], vars(refused)["error"]) == ("gpu-0", "invalid account")
    assert (vars(closes)["allocation"], vars(closes)["why"]) == ("elsewhere", "it is not wanted any more")


def test_nodes_are_asked_for_again_after_half_a_minute_and_each_wish_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with opened(tmp_path, "gpu:1x2", lease=3600.0) as plane:
        engine = FakeEngine([Site("gpu-0", "gpu", 2)], abilities=Abilities(scales=True))
        allocations, clock = engine_allocations(plane, engine), set_ahead(plane)
        jobs = submit(plane, job("runs", 2), job("waits", 2))
        soon(lambda: state(plane, jobs[0]) == "starting" and plane.waiting)
        for seconds, asked in ((0.0, 1), (29.0, 1), (31.0, 2)):
            clock.seconds = seconds
            allocations.tick()
            assert len(engine.asked) == asked
    assert logged(caplog, "engine", "gpus") == [("INFO", "more nodes asked for", "slurm", {"gpu": 2})] * 2


@dataclass
class Failing(FakeEngine):
    """An engine whose client has an error that nobody foresaw, once."""

    surveys: int = 0

    def survey(self) -> Sequence[Site]:
        self.surveys += 1
        if self.surveys == 1:
            raise ZeroDivisionError("unforeseen")
        return self.sites


def test_an_error_that_nobody_foresaw_is_logged_and_the_next_look_comes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with native(tmp_path) as plane:
        engine = Failing([Site("gpu-0", "gpu", 2)], abilities=NATIVE)
        allocations = EngineAllocations("slurm", engine, plane, lambda node: AgentCall((), lambda: ""))
        allocations.run_call = lambda node, name, gpus: AgentCall((), lambda: "")
        allocations.start()
        soon(lambda: engine.surveys >= 1)
        allocations._wake.set()
        soon(lambda: plane.cluster().up_gpus == 2)
        allocations.stop()
        allocations.stop()
    (record,) = (record for record in caplog.records if record.name == "shoal.live.engine_allocations")
    assert (record.levelname, record.getMessage()) == ("ERROR", "keeping the allocations failed")
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


NOTES: dict[str, tuple[Site, Seen | None, bool, str]] = {
    "the node and its allocation are up": (
        Site("gpu-0", "gpu", 2), Seen("gpu-0", "1", AllocationState.UP), False, ""
    ),
    "the node is down": (Site("gpu-0", "gpu", 2, state="down"), None, False, "slurm: down"),
    "the node is down for a reason": (
        Site("gpu-0", "gpu", 2, state="down", why="Not responding"), None, False, "slurm: down (Not responding)"
    ),
    "its allocation waits": (
        Site("gpu-0", "gpu", 2), Seen("gpu-0", "1", AllocationState.WAITING), False, "slurm: waiting"
    ),
    "its allocation waits for a reason": (
        Site("gpu-0", "gpu", 2), Seen("gpu-0", "1", AllocationState.WAITING, why="Priority"), False,
        "slurm: waiting (Priority)",
    ),
    "of two of its allocations one has ended": (
        Site("gpu-0", "gpu", 2), Seen("gpu-0", "2", AllocationState.UP), False, ""
    ),
    "the engine has gone away since": (
        Site("gpu-0", "gpu", 2, state="down"), Seen("gpu-0", "1", AllocationState.WAITING, why="Priority"), True,
        "slurm: did not answer: no answer within 5 s; down; waiting (Priority)",
    ),
}  # fmt: skip


def test_the_note_on_a_node_says_what_its_engine_says(tmp_path: Path) -> None:
    with opened(tmp_path, "gpu:1x2") as plane:
        for case, (site, seen, away, note) in NOTES.items():
            engine = FakeEngine([site])
            if seen is not None:
                engine.there = {seen.ref: seen}
            if "two" in case:
                engine.there["1"] = Seen("gpu-0", "1", AllocationState.ENDED)
            allocations = engine_allocations(plane, engine)
            allocations.tick()
            engine.away = away
            allocations.tick()
            assert (case, plane.engine_note("gpu-0")) == (case, note)
            assert plane.engine_note("elsewhere") == ("slurm: did not answer: no answer within 5 s" if away else "")


def test_a_refusal_is_noted_instead_of_the_allocation_and_forgotten_once_the_engine_takes_it(tmp_path: Path) -> None:
    with opened(tmp_path, "gpu:1x2", lease=3600.0) as plane:
        engine = FakeEngine([Site("gpu-0", "gpu", 2)], refuses="invalid account")
        allocations, clock = engine_allocations(plane, engine), set_ahead(plane)
        allocations.tick()
        assert notes(plane)["gpu-0"] == "slurm: invalid account"
        engine.refuses, clock.seconds = "", 10.0
        allocations.tick()
        allocations.tick()
        assert notes(plane)["gpu-0"] == "slurm: waiting (Resources)"


def test_a_node_whose_site_has_left_the_engine_keeps_no_refusal(tmp_path: Path) -> None:
    with opened(tmp_path, "gpu:1x2") as plane:
        engine = FakeEngine([Site("gpu-0", "gpu", 3)])  # it cannot become a node: its name has another size
        allocations = engine_allocations(plane, engine)
        engine.sites.append(Site("odd", "gpu", 2, state="asleep"))
        allocations.tick()
        assert list(notes(plane)) == ["gpu-0"]
        assert engine.opened == [], "an allocation on a node needs all GPUs that the cluster counts there"


def test_nodes_join_with_the_rack_of_their_site(tmp_path: Path) -> None:
    rows = [Site("a", "h100", 8, rack="r1"), Site("b", "a100", 4)]
    assert sites_as_nodes(rows) == [Node("a", "h100", 8, "r1"), Node("b", "a100", 4, "r0")]
    with opened(tmp_path, "gpu:1x2") as plane:
        engine_allocations(plane, FakeEngine([Site("new", "gpu", 4, rack="r7")])).tick()
        soon(lambda: "new" in notes(plane))
        (row,) = (row for row in plane.nodes(None) if row.name == "new")
        assert (row.kind, row.gpus, row.rack) == ("gpu", 4, "r7")


def test_the_engine_drains_without_a_reason_and_resumes_only_what_it_drained_itself(tmp_path: Path) -> None:
    with opened(tmp_path, "gpu:3x2") as plane:
        names = ("gpu-0", "gpu-1", "gpu-2")
        engine = FakeEngine([Site(name, "gpu", 2, state="draining") for name in names])
        plane.drain("gpu-1", "a fan", "root").result(20)

        def drained() -> list[str]:
            return [row.drained for row in plane.nodes(None)]

        soon(lambda: drained() == ["", "a fan", ""])
        allocations = engine_allocations(plane, engine)
        allocations.tick()
        soon(lambda: drained() == ["slurm: is draining", "a fan", "slurm: is draining"])
        engine.sites = [Site("gpu-0", "gpu", 2), Site("gpu-1", "gpu", 2), Site("gpu-2", "gpu", 2, state="down")]
        allocations.tick()
        soon(lambda: drained() == ["", "a fan", "slurm: is draining"])


def test_the_allocation_of_a_node_names_its_gpus_and_its_agents_call(tmp_path: Path) -> None:
    class Keeping(FakeEngine):
        def open(self, allocation: Allocation) -> None:
            kept.append(allocation)
            super().open(allocation)

    kept: list[Allocation] = []
    with opened(tmp_path, "gpu:1x2") as plane:
        allocations = engine_allocations(plane, Keeping([Site("gpu-0", "gpu", 2)]))
        allocations.grace = 7.0
        allocations.tick()
    (opened_,) = kept
    assert (opened_.name, opened_.node, opened_.kind, opened_.gpus, opened_.grace) == ("gpu-0", "gpu-0", "gpu", 2, 7.0)
    assert (opened_.call.arguments, opened_.call.token()) == (("--node", "gpu-0"), "secret")


def test_a_run_that_its_engine_refuses_for_longer_than_its_patience_ends_with_the_refusal(tmp_path: Path) -> None:
    with native(tmp_path) as plane:
        engine = FakeEngine([Site("gpu-0", "gpu", 2)], abilities=NATIVE, refuses="Invalid account")
        allocations, clock = native_allocations(plane, engine), set_ahead(plane)
        id = started(plane)
        for seconds in (0.0, 299.0):
            clock.seconds = seconds
            allocations.tick()
            assert state(plane, id) == "starting"
        clock.seconds = 601.0
        allocations.tick()
        cause = "slurm gave it no GPUs on gpu-0: it was refused for 300 s (Invalid account)"
        soon(lambda: any(cause in moment.what for moment in plane.job(id, None).story))


@pytest.mark.parametrize(("seconds", "ends"), [(299.9, False), (300.0, True)])
def test_a_refused_run_ends_when_its_patience_is_over_and_not_before(
    tmp_path: Path, seconds: float, ends: bool
) -> None:
    with native(tmp_path) as plane:
        engine = FakeEngine([Site("gpu-0", "gpu", 2)], abilities=NATIVE, refuses="Invalid account")
        allocations, clock = native_allocations(plane, engine), set_ahead(plane)
        id = started(plane)
        clock.stopped_at = begun = clock.now()
        allocations.tick()
        clock.stopped_at = begun + seconds
        allocations.tick()
        assert engine.opened == [f"{id}.1.gpu-0"] * 2
        clock.stopped_at = None
        plane.backend.record().result(20)  # the loop has taken a turn since
        cause = "slurm gave it no GPUs on gpu-0: it was refused for 300 s (Invalid account)"
        assert any(cause in moment.what for moment in plane.job(id, None).story) == ends


def test_a_run_whose_allocation_waits_for_too_long_ends_with_what_it_waited_for(tmp_path: Path) -> None:
    with native(tmp_path) as plane:
        engine = FakeEngine([Site("gpu-0", "gpu", 2)], abilities=NATIVE)
        allocations, clock = native_allocations(plane, engine), set_ahead(plane)
        id = started(plane)
        allocations.tick()
        allocations.tick()
        assert plane.job(id, None).change == "gpu-0: slurm 1 waits (Resources)"
        clock.seconds = 301.0
        allocations.tick()
        cause = "slurm gave it no GPUs on gpu-0: it waited for 300 s (Resources)"
        soon(lambda: any(cause in moment.what for moment in plane.job(id, None).story))


def test_a_starting_run_names_what_its_engine_says_of_each_allocation_and_that_it_is_away(tmp_path: Path) -> None:
    with native(tmp_path, "gpu:2x2", longest_grace=30.0) as plane:
        engine = FakeEngine([Site("gpu-0", "gpu", 2), Site("gpu-1", "gpu", 2)])
        engine.abilities = replace(NATIVE, longest_grace=30.0)
        allocations = native_allocations(plane, engine)
        id = started(plane, 4, grace=31.0)
        allocations.tick()
        engine.starts("1")
        engine.abilities = replace(NATIVE, longest_grace=31.0)
        allocations.tick()
        detail = plane.job(id, None)
        assert detail.engine == ["gpu-0: slurm 1 runs", "gpu-1: slurm 2 waits (Resources)"]
        assert detail.change == "gpu-1: slurm 2 waits (Resources)"
        engine.abilities = replace(NATIVE, longest_grace=30.0)
        warning = "slurm leaves 30 s of its 31 s of grace where it ends an allocation itself"
        assert plane.job(id, None).engine == [*detail.engine, warning]
        engine.away = True
        allocations.tick()
        waits = "slurm did not answer: no answer within 5 s; gpu-1: slurm 2 waits (Resources)"
        assert plane.job(id, None).change == waits
        (waiting,) = submit(plane, job("waiting", 4))
        soon(lambda: state(plane, waiting) == "pending")
        assert plane.job(waiting, None).engine == []
        assert "slurm" not in plane.job(waiting, None).change


def test_the_agent_of_a_run_is_told_its_node_gpus_and_the_longest_grace(tmp_path: Path) -> None:
    with native(tmp_path, longest_grace=0.5) as plane:
        engine = FakeEngine([Site("gpu-0", "gpu", 2)], abilities=replace(NATIVE, longest_grace=0.5))
        allocations = native_allocations(plane, engine)
        id = started(plane)
        (wanted,) = allocations._wanted_for_runs()
        name = f"{id}.1.gpu-0"
        assert (wanted.name, wanted.node, wanted.kind, wanted.group, wanted.patience) == (
            name, "gpu-0", "gpu", f"{id}.1", 300.0,
        )  # fmt: skip
        call = ("--node", "gpu-0", "--allocation", name, "--gpus", "2", "--longest-grace", "0.5")
        assert (wanted.call.arguments, wanted.call.token()) == (call, "secret")
        assert wanted.folders == (f"/home/jobs/{id}", f"/home/nodes/{name}")


def test_in_native_mode_nodes_are_up_and_lost_as_their_engine_says_at_the_time_of_the_query(tmp_path: Path) -> None:
    with native(tmp_path) as plane:
        engine = FakeEngine([Site("gpu-0", "gpu", 2)], abilities=NATIVE)
        allocations, clock = native_allocations(plane, engine), set_ahead(plane)
        engine.sites, clock.seconds = [Site("gpu-0", "gpu", 2, state="down")], 100.0
        allocations.tick()
        soon(lambda: plane.cluster().up_gpus == 0)
        path = plane.journal.path
    records = [record for record in JournalFile(path).read() if isinstance(record, EventBatch)]
    *_, returned, lost = (event for record in records for event in record.events)
    assert isinstance(returned, NodeReturned)
    assert isinstance(lost, NodeLost)
    assert returned.at + 90.0 < lost.at < returned.at + 200.0


@pytest.mark.parametrize(("ranks", "cpus"), [("gpu", 6), ("node", 3)])
def test_the_allocation_of_a_run_has_its_cpus_memory_and_a_limit_beyond_its_own(
    tmp_path: Path, ranks: str, cpus: int
) -> None:
    with native(tmp_path) as plane:
        allocations = native_allocations(plane, FakeEngine([Site("gpu-0", "gpu", 2)], abilities=NATIVE))
        submitted = job(gpus=2, grace=10.0, time=100.0, cpus=3, memory=2**30, ranks=ranks)
        (id,) = submit(plane, submitted)
        soon(lambda: state(plane, id) == "starting")
        (wanted,) = allocations._wanted_for_runs()
        assert (wanted.gpus, wanted.cpus, wanted.memory) == (2, cpus, 2**30)
        assert (wanted.grace, wanted.limit) == (10.0, 230.0), "its run time, its grace and two minutes"


def test_a_run_on_a_node_that_its_engine_drains_still_gets_its_allocation(tmp_path: Path) -> None:
    with native(tmp_path) as plane:
        engine = FakeEngine([Site("gpu-0", "gpu", 2)], abilities=NATIVE)
        allocations = native_allocations(plane, engine)
        id = started(plane)
        engine.sites = [Site("gpu-0", "gpu", 2, state="draining"), Site("unknown", "gpu", 2, state="asleep")]
        allocations.tick()
        assert engine.opened == [f"{id}.1.gpu-0"]
        assert plane.cluster().up_gpus == 2


def test_an_allocation_of_which_the_engine_has_reported_nothing_has_no_line() -> None:
    assert engine_words("slurm", "n0", None, "") == ""
    assert engine_words("slurm", "n0", None, "no such account") == "n0: slurm refused it: no such account"
    waiting = Seen("n0.1", "4711", AllocationState.WAITING, why="Resources")
    assert engine_words("slurm", "n0", waiting, "") == "n0: slurm 4711 waits (Resources)"
