"""One incarnation of a job on a node: its phase, its devices and its reports."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypeAlias

from shoal.wire.messages import RankExit, Roster, RunOrder, RunReport, SessionReport, SuspensionReport

Key: TypeAlias = tuple[int, int]
"""A job's number and its incarnation."""

MOST_CAUSE = 2000
"""Most characters of a cause that is reported."""


class RunPhase(StrEnum):
    """The phases of a run, in order."""

    WAITING = "waiting"
    PREPARING = "preparing"
    READY = "ready"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


_REPORTED: dict[RunPhase, Literal["ready", "running", "ended"]] = {
    RunPhase.READY: "ready",
    RunPhase.STARTING: "ready",
    RunPhase.RUNNING: "running",
    RunPhase.STOPPING: "running",
    RunPhase.ENDED: "ended",
}
"""By phase, its name in reports to the control plane; a run that is not ready yet is not reported."""


@dataclass(slots=True)
class NodeRun:
    """One incarnation of a job on this node."""

    order: RunOrder
    phase: RunPhase = RunPhase.WAITING
    devices: tuple[int, ...] = ()
    port: int = 0
    exits: dict[int, RankExit] = field(default_factory=dict)
    cleared_ranks: set[int] = field(default_factory=set)
    """Ranks of which no process is left."""
    workers: range = range(0)
    """The ranks it was started with."""
    roster: Roster | None = None
    """The members last written for its workers, if the job is resized in place."""
    cause: str = ""
    blameless: bool = False
    unstarted: bool = False
    """Whether this node could not start the ranks."""
    finished: bool = False
    unwanted: bool = False
    done: float | None = None
    saved: float | None = None
    session: SessionReport | None = None
    suspended: bool = False
    """Whether its processes are suspended and its devices free."""
    turn: int = 0
    """The last order to suspend or resume it that was begun."""
    turning: bool = False
    """Whether that order is being carried out."""
    suspension: SuspensionReport | None = None
    """The result of the last such order that was carried out."""
    gated: bool = False
    """Whether it was given devices that other runs still hold, and its ranks wait at the gate."""
    arrived: bool = False
    """Whether its ranks are at the gate, or are no longer waited for."""
    up: bool = False
    """Whether all ranks have been exec'ed."""

    @property
    def key(self) -> Key:
        """The job and the incarnation."""
        return self.order.job, self.order.incarnation

    @property
    def held(self) -> tuple[int, ...]:
        """The devices that are in use or reserved."""
        if self.suspended:
            return ()
        if self.roster is None:
            return self.devices
        pairs = zip(self.workers, self.devices, strict=True) if self.devices else ()
        return tuple(device for rank, device in pairs if rank not in self.cleared_ranks)

    @property
    def stays(self) -> bool:
        """Whether it keeps its devices by its orders: it is neither to be stopped nor to be suspended."""
        return not self.unwanted and self.order.phase != "stop" and self.order.turn % 2 == 0

    @property
    def silent_ranks(self) -> list[int]:
        """The ranks it was started with whose end was not reported."""
        return [rank for rank in self.workers if rank not in self.exits]

    @property
    def succeeded(self) -> bool:
        """Whether every rank it was started with ended by itself with status 0."""
        ends = [self.exits.get(rank) for rank in self.workers]
        return bool(ends) and all(end is not None and end.status == 0 and not end.warned for end in ends)

    def end(self, cause: str = "", *, blameless: bool = False) -> None:
        """Record that no process is left, with the cause and whether the job is blameless."""
        self.phase, self.devices = RunPhase.ENDED, ()
        self.cause, self.blameless = cause[:MOST_CAUSE], blameless

    @property
    def leavers(self) -> tuple[int, ...]:
        """Live workers that are not members."""
        if self.roster is None or not self.roster.generation:
            return ()
        staying = {*self.roster.members, *self.exits}
        return tuple(number for number in self.workers if number not in staying)

    def report(self) -> RunReport | None:
        """Return the report for the control plane; None if the run is not ready yet."""
        phase = _REPORTED.get(self.phase)
        return phase and RunReport(
            job=self.order.job,
            incarnation=self.order.incarnation,
            phase=phase,
            port=self.port,
            exits=list(self.exits.values()),
            cause=self.cause,
            blameless=self.blameless,
            unstarted=self.unstarted,
            finished=self.finished,
            done=self.done,
            saved=self.saved,
            session=self.session,
            roster=self.roster,
            suspension=self.suspension,
        )
