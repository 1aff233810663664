"""Requests of agents that wait for a change of their orders; a change examines its own agent's request only."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from shoal.serve.control_plane_api import ControlPlaneAPI
from shoal.serve.notifier import Notifier
from shoal.wire.messages import AgentReport


@dataclass(eq=False, slots=True)
class OrderWait:
    """One waiting request; ``done`` is called once, with whether the orders changed."""

    agent: str
    """The name of its node, or of its allocation for one run."""
    report: AgentReport
    done: Callable[[bool], None]
    waits: "OrderWaits"
    timer: asyncio.TimerHandle | None = None

    def finish(self, *, changed: bool) -> None:
        """End the wait and report it, unless it has ended."""
        if self.end():
            self.done(changed)

    def end(self) -> bool:
        """End the wait without a report; return false if it has ended."""
        here = self.waits.waiting.get(self.agent, [])
        if self not in here:
            return False
        if self.timer is not None:
            self.timer.cancel()
        here.remove(self)
        if not here:
            del self.waits.waiting[self.agent]
        return True


@dataclass(slots=True)
class OrderWaits:
    """The waiting requests by agent. Used by the event loop's thread alone."""

    control_plane: ControlPlaneAPI
    notifier: Notifier
    waiting: dict[str, list[OrderWait]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.notifier.on_check = self._check

    def begin(self, agent: str, report: AgentReport, seconds: float, done: Callable[[bool], None]) -> OrderWait:
        """Wait until an agent's orders are newer than its report says, ``seconds`` have passed, or the server stops."""
        loop = asyncio.get_running_loop()
        self.notifier.bind(loop)
        wait = OrderWait(agent, report, done, self)
        wait.timer = loop.call_later(0.0 if self.notifier.closed else seconds, lambda: wait.finish(changed=False))
        self.waiting.setdefault(agent, []).append(wait)
        return wait

    async def changed(self, agent: str, report: AgentReport, seconds: float) -> bool:
        """Wait as ``begin`` does; return whether the orders changed."""
        found: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        wait = self.begin(agent, report, seconds, found.set_result)
        try:
            return await found
        finally:
            wait.end()

    def _check(self) -> None:
        for agent in self.control_plane.touched():
            for wait in tuple(self.waiting.get(agent, ())):
                if self._is_newer(wait.report):
                    wait.finish(changed=True)
        if self.notifier.closed:
            for wait in [wait for here in self.waiting.values() for wait in here]:
                wait.finish(changed=False)

    def _is_newer(self, report: AgentReport) -> bool:
        try:
            return self.control_plane.generation(report.node, report.allocation) > report.known
        except Exception:  # the node or the run is gone: the answer to the agent says so
            return True
