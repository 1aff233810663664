"""Simulated ranks, which compute, save, crash or ignore signals, and the truth about them."""

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.dst.plan import Job
from tests.dst.world import World


class Host(Protocol):
    """The machine that processes run on."""

    address: str
    ranks: dict[int, Any]
    keepers: dict[int, Any]
    spawn_fails: int
    slow_starts: int
    rosters: dict[str, Any]
    origins: dict[str, int]
    agent: Any

    def monotonic(self) -> float: ...
    def wall(self) -> float: ...


@dataclass
class Truth:
    """What a job really did, which no part of Shoal reports: runs, exits, saved work and GPU-seconds."""

    job: Job
    id: str = ""
    saved: float = 0.0
    """Work done and saved, in GPU-seconds."""
    runs: dict[int, dict[int, int]] = field(default_factory=dict)
    """By incarnation and rank: the exit status."""
    worlds: dict[int, int] = field(default_factory=dict)
    finished: dict[int, set[int]] = field(default_factory=dict)
    """By origin: the ranks that did all their work."""
    done_at: dict[int, float] = field(default_factory=dict)
    """By origin: when the work of a job that is resized in place is done."""
    live: dict[tuple[str, int], int] = field(default_factory=dict)
    """By host and process number of a live rank: the incarnation in which the job left its checkpoint (origin)."""
    held: float = 0.0
    """GPU-seconds for which ranks lived."""
    blamed: int = 0
    """Ranks that ended otherwise than by a signal of their keeper or with status 0."""

    @property
    def work(self) -> float:
        """GPU-seconds of work."""
        return self.job.seconds * self.job.gpus

    def completed(self, incarnation: int) -> bool:
        """Return whether every rank of an incarnation did its work and exited with status 0.

        Of a job that is resized in place, workers come and go: those that trained last have done the work.
        """
        if self.job.in_place:
            return bool(self.finished.get(incarnation))
        exits, world = self.runs.get(incarnation, {}), self.worlds.get(incarnation, -1)
        done = self.finished.get(incarnation, set())
        return len(exits) == world and not any(exits.values()) and len(done) == world


class Registry:
    """The truth of all jobs, by identifier, and the continuous checks on live ranks."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.jobs: dict[str, Truth] = {}
        self.devices: dict[tuple[str, int], list[Rank]] = {}

    def began(self, rank: "Rank") -> None:
        """Check a rank that begins: no other incarnation of its job lives, no other job has its GPU."""
        truth, host = rank.truth, rank.host.address
        others = {origin for origin in truth.live.values() if origin != rank.origin}
        truth.live[host, rank.pid] = rank.origin
        truth.worlds[rank.incarnation] = rank.world_size
        self.world.note("rank begins", truth.id, rank.incarnation, rank.number, host)
        self.world.check(not others, f"{truth.id}: incarnations {sorted(others)} live while {rank.origin} begins")
        self.take(rank)

    def take(self, rank: "Rank") -> None:
        """Check that no other job has the GPUs of a rank that begins or is resumed."""
        truth, host = rank.truth, rank.host.address
        for device in rank.devices:
            holders = self.devices.setdefault((host, device), [])
            foreign = sorted({other.truth.id for other in holders if other.truth is not truth})
            self.world.check(not foreign, f"GPU {device} of {host} is given to {truth.id} while {foreign} hold it")
            holders.append(rank)

    def ended(self, rank: "Rank", status: int, seconds: float) -> None:
        """Record the end of a rank."""
        truth, host = rank.truth, rank.host.address
        del truth.live[host, rank.pid]
        truth.runs.setdefault(rank.incarnation, {})[rank.number] = status
        truth.held += seconds
        for device in rank.devices if rank.suspended_at is None else ():
            self.devices[host, device].remove(rank)
        self.world.note("rank ends", truth.id, rank.incarnation, rank.number, status)


@dataclass(eq=False)
class Rank:
    """One rank: a process that computes until its share of the work is done."""

    world: World
    registry: Registry
    host: Host
    truth: Truth
    parent: Any
    incarnation: int
    number: int
    world_size: int
    devices: tuple[int, ...]
    origin: int
    orders: str | None
    """The orders file of a worker that is resized in place."""
    progress_file: str
    pid: int = field(init=False)
    began_at: float = 0.0
    base: float = 0.0
    status: int | None = None
    paused: bool = False
    suspended_at: float | None = None
    due_at: float = 0.0
    """When its share of the work is done."""
    saving: bool = False
    _deferred: list[Callable[[], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pid = next(self.world.pids)

    def begin(self) -> None:
        """Start computing from the last checkpoint."""
        self.began_at, self.base = self.world.now, self.truth.saved
        self.registry.began(self)
        job = self.truth.job
        left = max(0.0, self.truth.work - self.base) / self.world_size
        if len(self.truth.runs) < job.crashes and self.origin == self.incarnation:
            self._later(min(left, 0.2), self._crash)
        if self.orders is not None:
            done_at = self.truth.done_at.setdefault(self.origin, self.world.now + left)
            self._later(done_at - self.world.now + 0.01, self.read_orders)
            self._later(0.1, self.read_orders)
            return
        # Ranks of a gang end one after another.
        self.due_at = self.world.now + left * (1 + 0.02 * self.number) + 0.01
        self._later(self.due_at - self.world.now, self._finish)

    def read_orders(self) -> None:
        """Leave if the orders leave this worker out; exit if the work is done and it trained."""
        roster = self.host.rosters.get(self.orders or "")
        if roster is None or self.saving or self.status is not None:
            return
        if self.number not in roster.members:
            self.saving = True
            self._later(self.world.rng.uniform(0.0, 1.0), self._leave)
        elif self.world.now >= self.truth.done_at[self.origin]:
            self._finish()

    def _leave(self) -> None:
        self.exit(0)

    @property
    def progress(self) -> float:
        """Work done so far by all ranks, in GPU-seconds."""
        return min(self.truth.work, self.base + (self.world.now - self.began_at) * self.world_size)

    def suspend(self) -> None:
        """Stop computing and leave the GPUs."""
        if self.status is None:
            self.paused, self.suspended_at = True, self.world.now
            for device in self.devices:
                self.registry.devices[self.host.address, device].remove(self)

    def resume(self) -> None:
        """Compute on, on the GPUs that the agent has reserved."""
        if self.status is not None or self.suspended_at is None:
            return
        runs = self.host.agent._state.runs.values() if self.host.agent is not None else ()
        for run in runs:
            if (run.order.id, run.order.incarnation) == (self.truth.id, self.incarnation):
                self.devices = (run.devices[self.number - run.order.first_rank],)
        away = self.world.now - self.suspended_at
        self.began_at, self.due_at, self.suspended_at = self.began_at + away, self.due_at + away, None
        self.registry.take(self)
        self.signal(signal.SIGCONT)

    def signal(self, number: int) -> None:
        """Receive a signal."""
        if self.status is not None:
            return
        if number == signal.SIGKILL:
            self.exit(-9)
        elif number == signal.SIGSTOP:
            self.paused = True
        elif number == signal.SIGCONT:
            self.paused = False
            deferred, self._deferred = self._deferred, []
            for action in deferred:
                action()
        elif number == signal.SIGTERM:
            self._run(self._terminate)

    def _terminate(self) -> None:
        style = self.truth.job.style
        if style == "die":
            self.exit(-15)
        elif style == "save" and not self.saving:
            self.saving = True
            self._later(self.truth.job.saving, self._saved)

    def _saved(self) -> None:
        if self.number == 0:
            self.truth.saved = max(self.truth.saved, self.progress)
        self.exit(0)

    def _crash(self) -> None:
        self.truth.blamed += 1
        self.exit(3)

    def _finish(self) -> None:
        if self.world.now < self.due_at - 1e-6:  # it was suspended meanwhile
            self._later(self.due_at - self.world.now, self._finish)
        elif not self.saving:
            self.truth.finished.setdefault(self.origin, set()).add(self.number)
            self.exit(0)

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self.world.after(seconds, self._run, action)

    def _run(self, action: Callable[[], None]) -> None:
        if self.status is not None:
            return
        if self.paused:
            self._deferred.append(action)
        else:
            action()

    def exit(self, status: int) -> None:
        """End with this status."""
        if self.status is None:
            self.status = status
            until = self.world.now if self.suspended_at is None else self.suspended_at
            self.registry.ended(self, status, until - self.began_at)
            self.parent.child_ended()


@dataclass(eq=False)
class Store:
    """The store of a job that is resized in place: a process that only waits."""

    world: World
    truth: Truth
    parent: Any
    pid: int = field(init=False)
    status: int | None = None
    number: int = -1
    orders: None = None

    def suspend(self) -> None:
        """Do nothing: a job that is resized in place is not suspended."""

    resume = suspend

    def __post_init__(self) -> None:
        self.pid = next(self.world.pids)

    def signal(self, number: int) -> None:
        """Receive a signal."""
        if self.status is None and number in (signal.SIGKILL, signal.SIGTERM):
            self.status = -9 if number == signal.SIGKILL else 0
            self.parent.child_ended()
