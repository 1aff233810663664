"""The real control plane as a simulated process: opened by ``live.home``, driven by cycles, killed and reopened."""

import os
import shutil
import sqlite3
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.dst.network import Answer, NoAnswer, Rejection
from tests.dst.poison import PoisonedPolicy
from tests.dst.shims import Disk, let_others_act
from tests.dst.world import Blocked, Clocks, Killed, World

from shoal.core.errors import InputError, ShoalError
from shoal.core.units import JobId
from shoal.live.control_plane import ControlPlane, UnknownJob
from shoal.live.home import JOURNAL, Settings, open_control_plane
from shoal.serve import handlers
from shoal.serve.tokens import Holder
from shoal.store.segments import ARCHIVE, archived
from shoal.wire.messages import AgentReport

RESTART_SECONDS = 1.0
"""Seconds after which a supervisor starts a control plane again that ended by itself."""

MOST_STEP = 3601.0
"""Seconds that a restart may add to the journal's time, however wrong the wall clock is."""


def _copy(source: str, target: str) -> None:
    """Copy a file of a home folder, except for those that are never written again."""
    if Path(source).parent.name == ARCHIVE:
        os.link(source, target)
    else:
        shutil.copyfile(source, target)


class SimCondition:
    """A condition of one thread: waiting raises ``Blocked``, notifying wakes the process."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        pass

    def wait(self, timeout: float | None = None) -> bool:
        raise Blocked(timeout)

    def notify_all(self) -> None:
        self._wake()

    notify = notify_all


class SimEvent:
    """An event that the loop waits for in the middle of its code: others act meanwhile."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._set = False

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float) -> bool:
        if not self._set:
            let_others_act(self._world, timeout)
        return self._set


class SimRest:
    """The rest between two cycles: now and then others act in it, and requests come in."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._asked = False

    def interrupt(self) -> None:
        self._asked = True

    def taken(self) -> None:
        self._asked = False

    def sleep(self, seconds: float) -> float:
        if self._world.rng.random() < 0.2:
            let_others_act(self._world, self._world.rng.uniform(0.0, 0.02))
        return 0.01 if self._asked else 0.0


class _Waiting:
    """Something to await: gives control back to the queue until it is resumed."""

    def __await__(self) -> Generator["_Waiting", bool, bool]:
        return (yield self)


@dataclass
class SimNotifier:
    """The notifier of a server: its coroutines wait in virtual time."""

    world: World
    plane: ControlPlane
    waiting: dict[_Waiting, tuple[Callable[[], bool], Callable[[bool], None]]] = field(default_factory=dict)
    _touched: frozenset[str] = frozenset()
    """During a check, the agents whose orders have changed."""
    _due: bool = False
    _registering: tuple[Callable[[], bool], float] = (bool, 0.0)

    async def changed(self, agent: str, report: AgentReport, seconds: float) -> bool:
        """Wait for a change of an agent's orders, as ``OrderWaits`` does."""

        def newer() -> bool:
            return agent in self._touched and self.plane.generation(report.node, report.allocation) > report.known

        self._registering = newer, seconds
        return await _Waiting()

    def wait(self, token: _Waiting, resume: Callable[[bool], None]) -> None:
        """Register a coroutine that has just begun to wait."""
        holds, seconds = self._registering
        self.waiting[token] = holds, resume
        self.world.after(seconds, self._end, token, False)

    def notify(self) -> None:
        if not self._due:
            self._due = True
            self.world.after(0.01, self._check)

    def _check(self) -> None:
        self._due = False
        self._touched = frozenset(self.plane.touched())
        for token, (holds, _) in list(self.waiting.items()):
            if token in self.waiting and holds():
                self._end(token, True)
        self._touched = frozenset()

    def _end(self, token: _Waiting, changed: bool) -> None:
        entry = self.waiting.pop(token, None)
        if entry is not None:
            entry[1](changed)


@dataclass
class SimPlane:
    """One control plane after another on one journal."""

    world: World
    settings_for: Callable[[Path], Settings]
    folder: Path
    clocks: Clocks
    disk: Disk
    segment: int
    """Records after which the journal's next segment begins."""
    on_ack: Callable[[str, list[str]], None] = lambda key, ids: None
    on_cycle: Callable[[ControlPlane], None] = lambda plane: None
    alive: bool = False
    paused: bool = False
    boots: int = 0
    control_plane: ControlPlane | None = None
    starting: bool = False
    ahead: float = 0.0
    """Seconds by which the journal's time is ahead of the world's."""
    stepped: float = 0.0
    """Seconds that restarts have added to the journal's time, in all, because the wall clock was ahead."""
    crash_at: str | None = None
    """The step of the next switch of segments at which it is killed."""
    poison: tuple[JobId, type[BaseException]] | None = None
    """A job with which the policy cannot decide, and what it raises then."""
    wanted: bool = True
    """Whether it is to run: False between a kill and its repair."""
    _opened: Any = None
    _running: bool = False
    _again: bool = False
    _due: bool = False
    _notifier: SimNotifier | None = None
    _context: Any = None
    _backlog: list[tuple[str, Any, Answer]] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.clocks.monotonic()

    def wall(self) -> float:
        return self.clocks.wall()

    # ── life ──────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Open the control plane on the journal in its folder; where that fails, try again later."""
        if self.alive or not self.wanted:
            return
        self.boots += 1
        self.alive, boot = True, self.boots
        self._opened = open_control_plane(self.settings_for(self.folder))
        try:
            with self.world.acting(self):
                plane: ControlPlane = self._opened.__enter__()
        except Killed:
            return
        except Exception as error:
            if not self.alive or self.boots != boot:  # killed: its code cannot go on
                return
            why = repr(error).replace(str(self.folder.parent), "")  # whose name is new in each trial
            self.world.note("plane does not start", why)
            self.world.check(self.disk.problem is not None, f"the control plane does not start: {why}")
            self.kill(wanted=True)
            self.world.after(RESTART_SECONDS, self.start)
            return
        if not self.alive:  # killed while it was opened
            return
        self.control_plane = plane
        self._check_clock(plane)
        plane.backend._lock = SimCondition(self.wake)  # type: ignore[assignment]
        plane.disk.stopping = SimEvent(self.world)  # type: ignore[assignment]
        plane.backend.rest = SimRest(self.world)  # type: ignore[assignment]
        plane._recorder.long = -1.0 if self.world.rng.random() < 0.5 else inf
        plane.compaction.most_records, plane.compaction.step = self.segment, self._switching
        judge = plane._loop.judge

        def slowly(*arguments: Any) -> Any:
            """Decide while other threads go on: their requests and reports come in between."""
            found = judge(*arguments)
            if self.world.rng.random() < 0.2:
                let_others_act(self.world, self.world.rng.uniform(0.0, 0.02))
            return found

        plane._loop.judge = slowly
        plane._loop.policy = PoisonedPolicy(plane._loop.policy, self)
        self._notifier = SimNotifier(self.world, plane)
        limits = SimpleNamespace(longest_wait=60.0)
        self._context = SimpleNamespace(control_plane=plane, reports={}, order_waits=self._notifier, limits=limits)
        plane.listen(self._notifier.notify)
        self.world.note("plane up", boot)
        self.wake()

    def _check_clock(self, plane: ControlPlane) -> None:
        with self.world.acting(self):
            ahead = plane.backend.clock.now() - self.world.now
        step, self.ahead = ahead - self.ahead, ahead
        self.stepped += max(0.0, step)
        self.world.check(step < MOST_STEP, f"a restart moved the journal's time by {step:.0f} s")

    def kill(self, *, wanted: bool = False) -> None:
        """SIGKILL: what was not written is lost; open files stay as the disk has them."""
        if not self.alive:
            self.wanted = wanted
            return
        self.world.note("plane killed")
        self.alive, self.paused, self.wanted = False, False, wanted
        after = self.folder.with_name(f"home-{self.boots}")
        shutil.copytree(self.folder, after, ignore=shutil.ignore_patterns("*-shm"), copy_function=_copy)
        for closed in archived(self.folder / JOURNAL)[-1:]:
            if closed.samefile(self.folder / JOURNAL):  # killed between two steps of a switch
                (after / JOURNAL).unlink()
                (after / JOURNAL).hardlink_to(after / closed.relative_to(self.folder))
        for name, size in self.disk.torn.items():
            with (after / name).open("r+b") as file:
                file.truncate(size)
        self.disk.torn.clear()
        self._end(after)

    def die(self) -> None:
        """End by SIGKILL in the middle of its code; a supervisor starts it again."""
        self.kill()
        self.world.after(RESTART_SECONDS, self.revive)

    def _switching(self, step: str) -> None:
        """Let others act after a step of a switch of segments, or die there."""
        self.world.note("switch", step)
        if step == self.crash_at:
            self.crash_at = None
            self.die()
            raise Killed
        if self.world.rng.random() < 0.2:
            let_others_act(self.world, self.world.rng.uniform(0.0, 0.02))

    def _end(self, folder: Path) -> None:
        before, self.folder = self.folder, folder
        backlog, self._backlog = self._backlog, []
        self.control_plane, self._context, self._notifier = None, None, None
        self.alive = False
        self.disk.drop()
        if not self._opened.gen.gi_running:  # else it was killed while it started
            self._opened.gen.close()
        self._opened = None
        if folder != before:
            shutil.rmtree(before)
        for _, _, answer in backlog:
            answer(NoAnswer("connection reset"))

    def terminate(self) -> None:
        """SIGTERM: the loop ends in order and the journal is closed."""
        plane = self.control_plane
        if plane is None or self._running or self.paused:
            self.kill()
            return
        self.world.note("plane ends")
        self.wanted, self._running = False, True
        try:
            with self.world.acting(self):
                plane.backend.close()
                plane.disk.stopping.set()
                plane._run()
                if self.control_plane is plane and plane.failed is None:
                    plane.journal.close()
        except (Killed, sqlite3.Error, OSError):
            pass
        finally:
            self._running = False
        if self.control_plane is plane:
            self.kill()

    def revive(self) -> None:
        """Start it again after a fault."""
        self.wanted = True
        self.start()

    def pause(self) -> None:
        """SIGSTOP."""
        self.paused = self.alive

    def resume(self) -> None:
        """SIGCONT."""
        if self.paused:
            self.paused = False
            backlog, self._backlog = self._backlog, []
            for kind, body, answer in backlog:
                self.request(kind, body, answer)
            self.wake()

    # ── the loop ──────────────────────────────────────────────────────────────────────────────────────────────

    def wake(self) -> None:
        """Run the loop soon."""
        if not self._due:
            self._due = True
            self.world.after(0.0005, self._turn)

    def _turn(self) -> None:
        self._due = False
        plane, boot = self.control_plane, self.boots
        if plane is None or self.paused or not self.alive:
            return
        if self._running:
            self._again = True
            return
        self._running = True
        try:
            with self.world.acting(self):
                plane._run()
        except Blocked as blocked:
            if blocked.seconds is not None:
                self.world.after(blocked.seconds + 0.0005, self._timeout, self.boots)
        except Killed:
            pass
        except Exception as error:
            if self.alive and self.boots == boot:  # else it was killed, and its code cannot go on
                self._died(repr(error))
        else:
            if self.alive and self.boots == boot:
                self._died(plane.failed or "its loop ended")
        finally:
            self._running = False
        if self.alive and self.control_plane is plane:
            self.on_cycle(plane)
        if self._again:
            self._again = False
            self.wake()

    def _died(self, why: str) -> None:
        self.world.violate(f"the control plane ended by itself: {why}")

    def _timeout(self, boot: int) -> None:
        if self.alive and self.boots == boot:
            self.wake()

    # ── the server ────────────────────────────────────────────────────────────────────────────────────────────

    def request(self, kind: str, body: Any, answer: Answer) -> None:
        """Process a request as the HTTP server does."""
        if self.paused or self.control_plane is None:
            if self.paused:
                self._backlog.append((kind, body, answer))
            else:
                answer(NoAnswer("connection refused"))
            return
        with self.world.acting(self):
            getattr(self, f"_{kind}")(self.control_plane, body, answer)

    def _hello(self, plane: ControlPlane, body: Any, answer: Answer) -> None:
        self._serve(handlers.hello, body, answer)

    def _sync(self, plane: ControlPlane, body: Any, answer: Answer) -> None:
        self._serve(handlers.sync, body, answer)

    def _serve(self, handler: Callable[..., Coroutine[Any, Any, Any]], body: Any, answer: Answer) -> None:
        call: Any = SimpleNamespace(body=body, holder=Holder("agent", "agent", node=body.node))
        self._step(handler(self._context, call), None, answer)

    def _step(self, coroutine: Coroutine[Any, Any, Any], value: Any, answer: Answer) -> None:
        assert self._notifier is not None
        try:
            token = coroutine.send(value)
        except StopIteration as stop:
            answer(stop.value)
        except InputError as error:
            answer(Rejection(str(error), busy=False))
        else:
            boot = self.boots
            self._notifier.wait(token, lambda changed: self._resume(boot, coroutine, changed, answer))

    def _resume(self, boot: int, coroutine: Coroutine[Any, Any, Any], changed: bool, answer: Answer) -> None:
        if not self.alive or self.boots != boot:
            coroutine.close()
            answer(NoAnswer("connection reset"))
        elif self.paused:
            self.world.after(0.1, self._resume, boot, coroutine, changed, answer)
        else:
            with self.world.acting(self):
                self._step(coroutine, changed, answer)

    def _submit(self, plane: ControlPlane, body: Any, answer: Answer) -> None:
        try:
            future = plane.submit(body, "default")
        except InputError as error:
            answer(Rejection(str(error), busy=False))
            return
        except Exception as error:
            answer(Rejection(repr(error), busy=True))
            return
        self._answer_future(future, answer, body[0].key)

    def _cancel(self, plane: ControlPlane, body: str, answer: Answer) -> None:
        try:
            future = plane.cancel(body, None)
        except UnknownJob:
            answer(Rejection(f"no job {body}", busy=False))
        except ShoalError as error:  # its disk is full
            answer(Rejection(str(error), busy=True))
        else:
            self._answer_future(future, answer, body)

    def _operate(self, plane: ControlPlane, body: Callable[[ControlPlane], "Future[None]"], answer: Answer) -> None:
        try:
            future = body(plane)
        except InputError as error:
            answer(Rejection(str(error), busy=False))
        except ShoalError as error:  # its disk is full
            answer(Rejection(str(error), busy=True))
        else:
            self._answer_future(future, answer)

    def _answer_future(self, future: "Future[Any]", answer: Answer, key: str | None = None) -> None:
        def done(found: "Future[Any]") -> None:
            error = found.exception()
            if error is not None:
                answer(Rejection(repr(error), busy=True))
                return
            # From here on the answer may have reached the client, whatever happens to the process.
            if key is not None:
                self.on_ack(key, found.result())
            answer(found.result())

        future.add_done_callback(done)
