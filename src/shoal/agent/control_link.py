"""The agent's side of the conversation with the control plane: two threads that never touch the agent's own state.

One asks and is kept waiting until there are new orders, the other tells at once what has changed here. Both report
everything each time, so that a message lost or repeated does no harm. A control plane that is away is asked again for
as long as it takes.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from shoal.core.errors import ShoalError
from shoal.wire.client import Client, Refused, Unreachable
from shoal.wire.messages import PROTOCOL, AgentOrders, AgentReport, Hello, LogAnswer, RunReport

_LOG = logging.getLogger(__name__)

_LONGEST_WAIT_SECONDS = 5.0
_ANSWER_SECONDS = 5.0
"""How long an answer may take beyond the wait that was asked for."""
_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS = 0.1, 2.0


@dataclass(frozen=True, slots=True)
class OutgoingReport:
    """What the control plane is to be told: the runs, pieces of logs, and the generation of orders acted on."""

    runs: Sequence[RunReport] = ()
    logs: Sequence[LogAnswer] = ()
    known: int = -1


@dataclass(frozen=True, slots=True)
class ReceivedOrders:
    """An answer: orders, when they were asked for (monotonic), and the log reads that went out with the question."""

    sent: float
    orders: AgentOrders
    first: bool
    answered: tuple[int, ...] = ()
    taken: threading.Event = field(default_factory=threading.Event)
    """Set by the receiver once it acts on the orders: the next question is then about what it has by then."""


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """The control plane will not have this agent."""

    error: ShoalError


News: TypeAlias = ReceivedOrders | TurnedAway


class ControlLink:
    """Keeps an agent and its control plane informed of each other."""

    def __init__(self, client: Client, hello: Hello, deliver: Callable[[News], None]) -> None:
        self._client = client
        self._hello = hello
        self._deliver = deliver
        self._told = OutgoingReport()
        self._wait = 0.0
        self._met = threading.Event()
        self._changed = threading.Event()
        self._away = False

    def open(self) -> None:
        """Begin: introduce the agent, then ask and tell for as long as the process lives."""
        for part in (self._listen, self._tell):
            threading.Thread(target=self._guarded, args=(part,), name=part.__name__, daemon=True).start()

    def publish(self, told: OutgoingReport, *, urgent: bool) -> None:
        """From now on this is what is told; at once if it is urgent, else with the next question."""
        self._told = told
        if urgent:
            self._changed.set()

    def farewell(self, told: OutgoingReport) -> None:
        """Tell one last time, from the caller's own thread, if the control plane is there to hear it."""
        if self._met.is_set():
            self._told = told
            try:
                self._ask(0.0)
            except ShoalError as error:
                _LOG.warning("last report not delivered", extra={"error": str(error)})

    def _guarded(self, part: Callable[[], None]) -> None:
        """Run a thread's part; an agent that can no longer hear or tell must not go on as if it could."""
        try:
            part()
        except Exception as error:
            _LOG.exception("the conversation broke off")
            self._deliver(TurnedAway(ShoalError(f"the agent failed: {error!r}")))

    def _listen(self) -> None:
        pauses = _Pauses()
        while True:
            try:
                heard = self._ask(self._wait) if self._met.is_set() else self._greet()
                self._met.set()
            except ShoalError as error:
                if not self._passes(error):
                    if not self._met.is_set():
                        self._deliver(TurnedAway(error))
                        return
                    # It knows this boot no longer: introduce the agent again.
                    self._met.clear()
                pauses.sleep()
                continue
            pauses.reset()
            if self._away:
                _LOG.info("control plane answers", extra={"server": self._client.url})
            self._away = False
            self._wait = min(_LONGEST_WAIT_SECONDS, heard.orders.lease / 3)
            self._deliver(heard)
            heard.taken.wait(1.0)

    def _tell(self) -> None:
        pauses = _Pauses()
        while True:
            self._changed.wait()
            self._met.wait()
            self._changed.clear()
            try:
                heard = self._ask(0.0)
            except ShoalError:
                # Whether it is away or will not hear us, the other thread finds out and says so.
                self._changed.set()
                pauses.sleep()
            else:
                pauses.reset()
                self._deliver(heard)

    def _greet(self) -> ReceivedOrders:
        sent = time.monotonic()
        orders = self._client.post("/v1/agent/hello", self._hello, AgentOrders, timeout=_ANSWER_SECONDS)
        return ReceivedOrders(sent, orders, first=True)

    def _ask(self, wait: float) -> ReceivedOrders:
        told = self._told
        report = AgentReport(
            protocol=PROTOCOL,
            node=self._hello.node,
            boot=self._hello.boot,
            known=told.known,
            runs=list(told.runs),
            logs=list(told.logs),
            wait=wait,
        )
        sent = time.monotonic()
        orders = self._client.post("/v1/agent/sync", report, AgentOrders, timeout=wait + _ANSWER_SECONDS)
        return ReceivedOrders(sent, orders, first=False, answered=tuple(log.read for log in told.logs))

    def _passes(self, error: ShoalError) -> bool:
        """Whether the same request may be answered later; says so once when it begins."""
        busy = isinstance(error, Refused) and (error.status >= 500 or error.status in (408, 429))
        if not (busy or isinstance(error, Unreachable)):
            return False
        if not self._away:
            _LOG.warning("control plane away", extra={"server": self._client.url, "error": str(error)})
        self._away = True
        return True


class _Pauses:
    """Longer and longer pauses, at random so that agents which lost the control plane together do not come together."""

    def __init__(self) -> None:
        self._next = _FIRST_PAUSE_SECONDS

    def sleep(self) -> None:
        time.sleep(self._next * random.uniform(0.5, 1.0))
        self._next = min(2 * self._next, _LAST_PAUSE_SECONDS)

    def reset(self) -> None:
        self._next = _FIRST_PAUSE_SECONDS
