"""Requests for pieces of logs, which the agents of nodes answer with their reports."""

from concurrent.futures import Future
from dataclasses import dataclass, field

import msgspec

from shoal.core.errors import InputError
from shoal.live.agent_status import AgentKey
from shoal.wire.messages import AgentReport, LogAnswer, LogRead


class ForeignRead(InputError):
    """An agent answered a request for a piece of a log that another agent was asked."""


@dataclass(slots=True)
class LogReads:
    """The requests that wait for an answer, by number: the agent, its order and the future of its answer.

    Bookkeeping only; the caller holds the backend's lock.
    """

    _waiting: dict[int, tuple[AgentKey, LogRead, "Future[LogAnswer]"]] = field(default_factory=dict)
    _count: int = 0

    def ask(self, agent: AgentKey, order: LogRead) -> "Future[LogAnswer]":
        """Add a request to an agent; ``order.read`` is replaced by a new number."""
        self._count += 1
        answer: Future[LogAnswer] = Future()
        self._waiting[self._count] = agent, msgspec.structs.replace(order, read=self._count), answer
        return answer

    def orders(self, agent: AgentKey) -> list[LogRead]:
        """Return the requests to an agent."""
        return [order for asked, order, _ in self._waiting.values() if asked == agent]

    def take(self, agent: AgentKey, report: AgentReport) -> None:
        """Pass an agent's answers on to those who asked; ``ForeignRead`` if one was asked of another agent."""
        asked = [(answer, self._waiting.get(answer.read)) for answer in report.logs]
        for answer, read in asked:
            if read is not None and read[0] != agent:
                raise ForeignRead("logs", answer.read, f"this piece of a log was not asked of {report.node}")
        for answer, _ in asked:
            read = self._waiting.pop(answer.read, None)
            if read is not None and not read[2].cancelled():
                read[2].set_result(answer)

    def withdraw(self, answer: "Future[LogAnswer]") -> None:
        """Drop the request that this future was to hold the answer of."""
        self._waiting = {number: read for number, read in self._waiting.items() if read[2] is not answer}
