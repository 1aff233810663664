"""What a node should have and what it has: orders and news go in, things to do come out.

Pure bookkeeping: no clock, no process, no file. Repeating orders changes nothing. A device is held by one run, or by
one and those that share with it, from when it is made ready until nothing of it is left; of a job that is resized in
place, until nothing of the worker is left that had it.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypeAlias

from shoal.wire.messages import AgentOrders, RankExit, Roster, RunOrder, RunReport, SessionReport

Key: TypeAlias = tuple[int, int]
"""A job's number and its incarnation."""

_MOST_CAUSE = 2000


class RunPhase(StrEnum):
    """How far a run has come."""

    WAITING = "waiting"
    PREPARING = "preparing"
    READY = "ready"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


_TOLD: dict[RunPhase, Literal["ready", "running", "ended"]] = {
    RunPhase.READY: "ready",
    RunPhase.STARTING: "ready",
    RunPhase.RUNNING: "running",
    RunPhase.STOPPING: "running",
    RunPhase.ENDED: "ended",
}
"""What the control plane is told of each phase; a run that is not ready yet is not spoken of."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """See whether the run could start here and find it a port; answer with ``NodeState.prepared``."""

    order: RunOrder


@dataclass(frozen=True, slots=True)
class StartRanks:
    """Start the ranks; tell ``NodeState.started``, ``NodeState.exited`` and at last ``NodeState.over``."""

    order: RunOrder
    devices: tuple[int, ...]
    port: int


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell the workers of a run who is to train from now on, and see to it that those left out leave."""

    key: Key
    roster: Roster
    leavers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StopRanks:
    """Warn the ranks and kill them after ``grace`` seconds; tell ``NodeState.over`` when nothing is left."""

    key: Key
    grace: float


@dataclass(frozen=True, slots=True)
class Forget:
    """Nobody will ask for this run again: drop what was kept of it."""

    key: Key


Action: TypeAlias = Prepare | StartRanks | Tell | StopRanks | Forget
Todo: TypeAlias = list[Action]


@dataclass(slots=True)
class NodeRun:
    """One incarnation of a job on this node."""

    order: RunOrder
    phase: RunPhase = RunPhase.WAITING
    devices: tuple[int, ...] = ()
    port: int = 0
    exits: dict[int, RankExit] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    """Ranks of which nothing is left."""
    workers: range = range(0)
    """The ranks it was started with."""
    roster: Roster | None = None
    """The one they were told of last."""
    cause: str = ""
    blameless: bool = False
    finished: bool = False
    unwanted: bool = False
    done: float | None = None
    saved: float | None = None
    session: SessionReport | None = None

    @property
    def key(self) -> Key:
        """Which job, which incarnation."""
        return self.order.job, self.order.incarnation

    @property
    def held(self) -> tuple[int, ...]:
        """The devices that are in use, or kept for it."""
        if self.roster is None:
            return self.devices
        having = zip(self.workers, self.devices, strict=True) if self.devices else ()
        return tuple(device for rank, device in having if rank not in self.gone)

    def end(self, cause: str = "", *, blameless: bool = False) -> None:
        """Nothing of it is left, for this reason, which may be no fault of its own."""
        self.phase, self.devices = RunPhase.ENDED, ()
        self.cause, self.blameless = cause[:_MOST_CAUSE], blameless

    @property
    def leavers(self) -> tuple[int, ...]:
        """Its workers that the roster they were told of has left out."""
        if self.roster is None or not self.roster.generation:
            return ()
        staying = {*self.roster.members, *self.exits}
        return tuple(number for number in self.workers if number not in staying)

    def report(self) -> RunReport | None:
        """What the control plane is told of it, if anything yet."""
        told = _TOLD.get(self.phase)
        return told and RunReport(
            job=self.order.job,
            incarnation=self.order.incarnation,
            phase=told,
            port=self.port,
            exits=list(self.exits.values()),
            cause=self.cause,
            blameless=self.blameless,
            finished=self.finished,
            done=self.done,
            saved=self.saved,
            session=self.session,
            roster=self.roster,
        )


class NodeState:
    """The runs of a node with so many devices."""

    def __init__(self, devices: int) -> None:
        self._devices = devices
        self._closing = False
        self.generation = -1
        self.runs: dict[Key, NodeRun] = {}

    def reports(self) -> list[RunReport]:
        """All runs, as the control plane is told of them."""
        return [report for run in self.runs.values() if (report := run.report())]

    def follow(self, orders: AgentOrders, *, first: bool = False) -> Todo:
        """Take in all that the node should have. Orders older than the last are ignored, unless ``first``: a control
        plane that has just been met may count from anywhere."""
        if orders.generation < self.generation and not first:
            return []
        self.generation = orders.generation
        todo: Todo = []
        wanted = {(order.job, order.incarnation): order for order in orders.runs}
        for key in [key for key in self.runs if key not in wanted]:
            todo += self._drop(self.runs[key])
        for key, order in wanted.items():
            todo += self._take(key, order)
        return todo + self._seat()

    def close(self) -> Todo:
        """Stop every run and take no new one: the agent is ending."""
        self._closing = True
        return [action for run in self.runs.values() for action in self._stop(run, "the agent was told to end")]

    def prepared(self, key: Key, port: int, cause: str = "") -> Todo:
        """A run can start here, or cannot for this reason."""
        run = self.runs.get(key)
        if run is None or run.phase is not RunPhase.PREPARING:
            return []
        if cause:
            run.end(cause)
            return self._seat()
        run.port = port
        run.phase = RunPhase.READY
        return self._go(run)

    def started(self, key: Key) -> None:
        """All ranks have been exec'ed."""
        if self.runs[key].phase is RunPhase.STARTING:
            self.runs[key].phase = RunPhase.RUNNING

    def exited(self, key: Key, rank: int, status: int, *, warned: bool = False) -> None:
        """A rank has ended, by itself or after it was warned."""
        self.runs[key].exits[rank] = RankExit(rank, status, warned)

    def cleared(self, key: Key, rank: int) -> Todo:
        """Nothing of a rank that ended is left."""
        self.runs[key].gone.add(rank)
        return self._seat()

    def progressed(
        self, key: Key, done: float, saved: float | None = None, session: SessionReport | None = None
    ) -> None:
        """The job has written how far it is, and its trainer library how it fares."""
        run = self.runs[key]
        run.done, run.saved, run.session = done, saved, session

    def over(self, key: Key, cause: str = "", *, blameless: bool = False, unwarned: bool = False) -> Todo:
        """Nothing of a run is left, for this reason, which may be no fault of its own, or because it was done."""
        run = self.runs[key]
        run.end(cause, blameless=blameless)
        run.finished = unwarned and not cause and not any(ended.status for ended in run.exits.values())
        todo: Todo = []
        if run.unwanted:
            todo.append(self._forget(run))
        return todo + self._seat()

    def _take(self, key: Key, order: RunOrder) -> Todo:
        run = self.runs.get(key)
        if run is None:
            if self._closing:
                return []
            run = self.runs[key] = NodeRun(order)
        if run.phase is RunPhase.READY and _start_of(order) != _start_of(run.order):
            run.end("it was to join workers of which the control plane knows nothing any more", blameless=True)
        run.order, run.unwanted = order, False
        return self._stop(run, "") if order.phase == "stop" else [*self._go(run), *self._tell(run)]

    def _tell(self, run: NodeRun) -> Todo:
        """A newer roster for workers that run. Until one names them they are told nothing, or they would leave."""
        roster, known = run.order.roster, run.roster
        if roster is None or known is None or run.phase not in (RunPhase.STARTING, RunPhase.RUNNING):
            return []
        if roster.generation <= known.generation or roster.origin != known.origin:
            return []
        run.roster = roster
        return [Tell(run.key, roster, run.leavers)]

    def _go(self, run: NodeRun) -> Todo:
        if run.phase is not RunPhase.READY or run.order.phase != "go":
            return []
        run.phase, run.roster = RunPhase.STARTING, run.order.roster
        run.workers = range(run.order.first_rank, run.order.first_rank + run.order.local_ranks)
        return [StartRanks(run.order, run.devices, run.order.port or run.port)]

    def _drop(self, run: NodeRun) -> Todo:
        run.unwanted = True
        todo = self._stop(run, "")
        return [*todo, self._forget(run)] if run.phase is RunPhase.ENDED else todo

    def _forget(self, run: NodeRun) -> Forget:
        del self.runs[run.key]
        return Forget(run.key)

    def _stop(self, run: NodeRun, cause: str) -> Todo:
        if run.phase in (RunPhase.STARTING, RunPhase.RUNNING):
            run.phase = RunPhase.STOPPING
            return [StopRanks(run.key, run.order.grace)]
        if run.phase in (RunPhase.WAITING, RunPhase.PREPARING, RunPhase.READY):
            run.end(cause, blameless=True)
        return []

    def _seat(self) -> Todo:
        """Give devices to the runs that wait for them, in the order they came; who shares comes after its partner."""
        todo: Todo = []
        waiting = [run for run in self.runs.values() if run.phase is RunPhase.WAITING]
        for run in sorted(waiting, key=lambda run: run.order.shared_with is not None):
            if run.order.gpus > self._devices:
                run.end(f"needs {run.order.gpus} devices, and this node has {self._devices}")
            elif not self._predecessor(run) and len(devices := self._choose(run.order)) == run.order.gpus:
                run.devices, run.phase = devices, RunPhase.PREPARING
                todo.append(Prepare(run.order))
        return todo

    def _predecessor(self, run: NodeRun) -> bool:
        """Whether another incarnation of the job still lives here: two would write to the same checkpoint.

        One that it is to join is none.
        """
        return any(
            other.order.job == run.order.job
            and other.phase not in (RunPhase.WAITING, RunPhase.ENDED)
            and _start_of(other.order) != _start_of(run.order)
            for other in self.runs.values()
        )

    def _choose(self, order: RunOrder) -> tuple[int, ...]:
        """The devices a run would get: those it is to share, then free ones; too few where it has to wait."""
        shared: tuple[int, ...] = ()
        for run in self.runs.values():
            if run.order.job == order.shared_with and run.phase not in (RunPhase.STOPPING, RunPhase.ENDED):
                if run.phase is RunPhase.WAITING and run.order.shared_with != order.job:
                    return ()
                shared = run.devices
        held = {device for run in self.runs.values() for device in run.held}
        free = [device for device in range(self._devices) if device not in held]
        return (*shared, *free)[: order.gpus]


def _start_of(order: RunOrder) -> int:
    """The incarnation in which what it belongs to started from a checkpoint."""
    return order.incarnation if order.roster is None else order.roster.origin
