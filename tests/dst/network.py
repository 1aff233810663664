"""A simulated network: requests and answers that are delayed, lost, repeated, overtaken or cut off."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.dst.world import World

Answer = Callable[[Any], None]
"""Receives an answer, or the ``Exception`` that came instead of one."""


class Server(Protocol):
    """The control plane as the network sees it."""

    alive: bool

    def request(self, kind: str, body: Any, answer: Answer) -> None:
        """Process a request, now or when the process is continued."""
        ...


class NoAnswer(Exception):
    """The connection was refused or broke, or no answer came in time."""


class Rejection(Exception):
    """The control plane refused the request; ``busy`` if the same request may succeed later."""

    def __init__(self, text: str, *, busy: bool) -> None:
        super().__init__(text)
        self.busy = busy


@dataclass(slots=True)
class Cable:
    """The connection of one client to the control plane, and its present faults (each counted)."""

    world: World
    server: Server
    name: str
    faults: dict[str, int] = field(default_factory=dict)

    def strike(self, fault: str) -> None:
        """Begin a fault: cut, silent, up, down, slow, hold, drop or repeat."""
        self.faults[fault] = self.faults.get(fault, 0) + 1

    def mend(self, fault: str) -> None:
        """End a fault."""
        self.faults[fault] = max(0, self.faults.get(fault, 0) - 1)

    def has(self, *faults: str) -> bool:
        """Return whether one of these faults is present."""
        return any(self.faults.get(fault) for fault in faults)

    def call(self, kind: str, body: Any, timeout: float, answer: Answer) -> None:
        """Send a request; ``answer`` is called once."""
        open_call = _OpenCall(answer)
        world = self.world
        world.after(timeout, open_call.close, NoAnswer("no answer in time"))
        if self.has("cut"):
            world.after(0.001, open_call.close, NoAnswer("connection refused"))
            return
        if self.has("silent", "up") or self._lost():
            return
        world.after(self._delay(), self._arrive, kind, body, open_call)
        if self.has("repeat") and world.rng.random() < 0.5:
            # A copy that the kernel still had: it may come after many later messages.
            world.after(world.rng.expovariate(0.4), self._arrive, kind, body, _OpenCall(lambda _: None))

    def _arrive(self, kind: str, body: Any, open_call: "_OpenCall") -> None:
        if not self.server.alive:
            open_call.close(NoAnswer("connection refused"))
            return
        self.server.request(kind, body, lambda found: self._return(open_call, found))

    def _return(self, open_call: "_OpenCall", found: Any) -> None:
        if isinstance(found, NoAnswer) or self.has("cut"):
            self.world.after(0.001, open_call.close, NoAnswer("connection reset"))
        elif not (self.has("silent", "down") or self._lost()):
            self.world.after(self._delay(), open_call.close, found)

    def _lost(self) -> bool:
        return self.has("drop") and self.world.rng.random() < 0.4

    def _delay(self) -> float:
        usual = self.world.rng.uniform(0.0005, 0.01)
        if self.has("hold"):  # what is sent during the fault arrives late, some of it after the sender has given up
            return usual + self.world.rng.uniform(0.0, 20.0)
        return usual + self.world.rng.expovariate(1.0) if self.has("slow") else usual


@dataclass(slots=True)
class _OpenCall:
    answer: Answer | None

    def close(self, found: Any) -> None:
        if self.answer is not None:
            answer, self.answer = self.answer, None
            answer(found)
