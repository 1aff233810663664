"""The agent's conversation with the control plane, without threads."""

from collections.abc import Callable
from typing import Any

import msgspec
from tests.dst.network import Rejection
from tests.dst.world import World

from shoal.agent import control_link
from shoal.agent.control_link import ReceivedOrders
from shoal.core.errors import ShoalError
from shoal.wire.messages import PROTOCOL, AgentReport, Hello


class SimLink:
    """The conversation of ``ControlLink`` without its threads: the same requests, waits and pauses."""

    def __init__(self, client: Any, hello: Hello, deliver: Callable[[Any], None], world: World) -> None:
        self._world, self._node = world, world.machine
        self._boot = self._node.boots
        self._hello, self._deliver = hello, deliver
        self._report = AgentReport(protocol=PROTOCOL, node=hello.node, boot=hello.boot, known=-1, runs=[])
        self._wait = 0.0
        self._session = ""
        self._registered = False
        self._changed = self._pushing = False
        self._pauses = {"poll": control_link._FIRST_PAUSE_SECONDS, "push": control_link._FIRST_PAUSE_SECONDS}

    def open(self) -> None:
        self._poll()

    def publish(self, report: AgentReport, *, urgent: bool) -> None:
        self._report = report
        if urgent:
            self._changed = True
            self._push()

    def send_last(self, report: AgentReport) -> None:
        if self._registered:
            self._report = report
            report = msgspec.structs.replace(report, session=self._session)
            self._node.cable.call("sync", report, 5.0, lambda found: None)

    @property
    def _alive(self) -> bool:
        return bool(self._node.alive and self._node.boots == self._boot)

    def _own(self, action: Callable[..., None], *arguments: Any) -> None:
        """Run a step of this agent's threads, if the process is still there."""
        if self._alive:
            self._node.when_running(lambda: action(*arguments) if self._alive else None)

    def _call(self, kind: str, wait: float, then: Callable[[float, Any, Any], None]) -> None:
        report = msgspec.structs.replace(self._report, wait=wait, session=self._session)
        body = self._hello if kind == "hello" else report
        sent = self._node.monotonic()
        timeout = wait + control_link._ANSWER_SECONDS
        self._node.cable.call(kind, body, timeout, lambda found: self._own(then, sent, body, found))

    def _poll(self) -> None:
        self._call("sync" if self._registered else "hello", self._wait, self._polled)

    def _polled(self, sent: float, body: Any, found: Any) -> None:
        if isinstance(found, Exception):
            if isinstance(found, Rejection) and not found.busy:
                if not self._registered:
                    self._deliver(control_link.Rejected(ShoalError(str(found))))
                    return
                self._registered = False
            self._pause("poll", self._poll)
            return
        first = not self._registered
        self._session = found.session if first else self._session
        self._registered, self._pauses["poll"] = True, control_link._FIRST_PAUSE_SECONDS
        self._wait = min(control_link._LONGEST_WAIT_SECONDS, found.lease / 3)
        answered = () if first else tuple(log.read for log in body.logs)
        self._deliver(ReceivedOrders(sent, found, first=first, answered=answered))
        self._world.after(0.002, self._own, self._poll)
        self._push()

    def _push(self) -> None:
        if self._changed and self._registered and not self._pushing:
            self._changed, self._pushing = False, True
            self._world.after(0.0002, self._own, self._call, "sync", 0.0, self._pushed)

    def _pushed(self, sent: float, body: Any, found: Any) -> None:
        if isinstance(found, Exception):
            self._changed = True
            self._pause("push", self._push_again)
            return
        self._pauses["push"] = control_link._FIRST_PAUSE_SECONDS
        self._deliver(ReceivedOrders(sent, found, first=False, answered=tuple(log.read for log in body.logs)))
        self._push_again()

    def _push_again(self) -> None:
        self._pushing = False
        self._push()

    def _pause(self, which: str, again: Callable[[], None]) -> None:
        pause = self._pauses[which]
        self._pauses[which] = min(2 * pause, control_link._LAST_PAUSE_SECONDS)
        self._world.after(pause * self._world.rng.uniform(0.5, 1.0), self._own, again)
