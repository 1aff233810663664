"""The agent's connection to the control plane: two threads that never touch the agent's own state.

One sends a report and waits until the control plane has new orders; the other reports changes at once. Every request
carries the whole report, so that a message lost or repeated does no harm. While the control plane cannot be reached,
both retry without end.
"""

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from shoal.core.decoding import convert
from shoal.core.errors import ShoalError
from shoal.wire.client import Client, Refused, Unreachable, Untrusted
from shoal.wire.messages import PROTOCOL, AgentOrders, AgentReport, Hello

_LOG = logging.getLogger(__name__)

_LONGEST_WAIT_SECONDS = 20.0
_ANSWER_SECONDS = 5.0
"""Seconds an answer may take beyond the wait that was requested."""
_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS = 0.1, 2.0


@dataclass(frozen=True, slots=True)
class ReceivedOrders:
    """Orders, the monotonic time of the request for them, and the log reads whose answers were sent with it."""

    sent: float
    orders: AgentOrders
    first: bool
    answered: tuple[int, ...] = ()
    applied: threading.Event = field(default_factory=threading.Event)
    """Set by the agent once it acts on the orders, so that the next report shows it."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The control plane refuses this agent, or the connection failed for good."""

    error: ShoalError


LinkMessage: TypeAlias = ReceivedOrders | Rejected


class ControlLink:
    """Exchanges reports and orders with the control plane; ``deliver`` is called from its threads."""

    def __init__(self, client: Client, hello: Hello, deliver: Callable[[LinkMessage], None]) -> None:
        self._client = client
        self.hello = hello
        self._deliver = deliver
        self._report = AgentReport(
            protocol=PROTOCOL, node=hello.node, boot=hello.boot, known=-1, runs=[], allocation=hello.allocation
        )
        self._wait = 0.0
        self._session = ""
        self._registered = threading.Event()
        self._changed = threading.Event()
        self._unreachable = False
        self._answered = False

    def open(self) -> None:
        """Start the threads, which register the agent and then run as long as the process."""
        for loop in (self._poll, self._push):
            threading.Thread(target=self._guarded, args=(loop,), name=loop.__name__, daemon=True).start()

    def publish(self, report: AgentReport, *, urgent: bool) -> None:
        """Send this report from now on: at once if ``urgent``, else with the next request."""
        self._report = report
        if urgent:
            self._changed.set()

    def send_last(self, report: AgentReport) -> None:
        """Send a report once, from the caller's thread, if the agent is registered."""
        if self._registered.is_set():
            self._report = report
            try:
                self._sync(0.0)
            except ShoalError as error:
                _LOG.warning("last report not delivered", extra={"error": str(error)})

    def _guarded(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except Exception as error:
            # Without this thread the agent must not go on.
            _LOG.exception("the conversation broke off")
            self._deliver(Rejected(ShoalError(f"the agent failed: {error!r}")))

    def _poll(self) -> None:
        backoff = _Backoff()
        while True:
            try:
                received = self._sync(self._wait) if self._registered.is_set() else self._register()
                self._registered.set()
                self._answered = True
            except ShoalError as error:
                if not self._retryable(error):
                    if not self._registered.is_set():
                        self._deliver(Rejected(error))
                        return
                    # The control plane no longer knows this boot: register again.
                    self._registered.clear()
                backoff.sleep()
                continue
            backoff.reset()
            if self._unreachable:
                _LOG.info("control plane answers", extra={"server": self._client.url})
            self._unreachable = False
            self._wait = min(_LONGEST_WAIT_SECONDS, received.orders.lease / 3)
            self._deliver(received)
            received.applied.wait(1.0)

    def _push(self) -> None:
        backoff = _Backoff()
        while True:
            self._changed.wait()
            self._registered.wait()
            self._changed.clear()
            try:
                received = self._sync(0.0)
            except ShoalError:
                # The other thread finds out why, and logs it.
                self._changed.set()
                backoff.sleep()
            else:
                backoff.reset()
                self._deliver(received)

    def _register(self) -> ReceivedOrders:
        sent = time.monotonic()
        orders = self._client.post("/v1/agent/hello", self.hello, AgentOrders, timeout=_ANSWER_SECONDS)
        self._session = orders.session
        return ReceivedOrders(sent, orders, first=True)

    def _sync(self, wait: float) -> ReceivedOrders:
        report = msgspec.structs.replace(self._report, wait=wait, session=self._session)
        sent = time.monotonic()
        orders = self._client.post("/v1/agent/sync", report, AgentOrders, timeout=wait + _ANSWER_SECONDS)
        return ReceivedOrders(sent, orders, first=False, answered=tuple(log.read for log in report.logs))

    def _retryable(self, error: ShoalError) -> bool:
        """Return whether the same request may succeed later; log the first such failure.

        A certificate that is not trusted and a token that is refused end an agent that starts, not one that was
        accepted before: the control plane may have started with its clock ahead, so that every token had expired.
        """
        refused = isinstance(error, Refused) and error.status == 401
        busy = isinstance(error, Refused) and (error.status >= 500 or error.status in (408, 429))
        if (refused or isinstance(error, Untrusted)) and not self._answered:
            return False
        if not (busy or refused or isinstance(error, Unreachable)):
            return False
        if not self._unreachable:
            _LOG.warning("control plane away", extra={"server": self._client.url, "error": str(error)})
        self._unreachable = True
        return True


class _Backoff:
    """Pauses that double, randomized so that agents do not all reconnect at the same moment."""

    def __init__(self) -> None:
        self._next = _FIRST_PAUSE_SECONDS

    def sleep(self) -> None:
        time.sleep(self._next * random.uniform(0.5, 1.0))
        self._next = min(2 * self._next, _LAST_PAUSE_SECONDS)

    def reset(self) -> None:
        self._next = _FIRST_PAUSE_SECONDS


def checked(hello: Hello) -> Hello:
    """Return the message if its fields are valid for the control plane; ``InputError`` names one that is not."""
    return convert(msgspec.structs.asdict(hello), Hello)
