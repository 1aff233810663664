"""The words of the route table: what a route is, what it is called with, and what its handlers share."""

import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from shoal.serve.cluster_feed import ClusterFeed
from shoal.serve.control_plane_api import ControlPlaneAPI
from shoal.serve.limits import ServerLimits
from shoal.serve.metrics import Metrics
from shoal.serve.notifier import Notifier
from shoal.serve.tokens import Holder, Tokens
from shoal.wire.messages import AgentReport, Role, WhatIf

Question: TypeAlias = Callable[[WhatIf, str | None], Any]
"""Answers a what-if for a tenant (None: for an admin) with a document of plain values; may take seconds."""


@dataclass(slots=True)
class AppContext:
    """What the handlers share.

    ``reports`` has what each node's agent said last; ``listeners`` and ``questions`` count what is under way now.
    """

    desk: ControlPlaneAPI
    tokens: Tokens
    what_if: Question
    version: str
    description: dict[str, Any]
    limits: ServerLimits
    metrics: Metrics
    bell: Notifier
    news: ClusterFeed
    reports: dict[str, AgentReport] = field(default_factory=dict)
    listeners: int = 0
    questions: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def asks(self) -> bool:
        """Count a question, if one more may be asked now."""
        with self._lock:
            allowed = self.questions < self.limits.questions
            self.questions += allowed
            return allowed

    def answered(self) -> None:
        """A question is no longer being thought about, whether or not anybody still waits for the answer."""
        with self._lock:
            self.questions -= 1


@dataclass(frozen=True, slots=True)
class Call:
    """One request that passed every check: who asks, and what, already of the route's types."""

    who: Holder
    path: Mapping[str, str]
    query: Any
    body: Any


Handler: TypeAlias = Callable[[AppContext, Call], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Route:
    """One thing that can be asked.

    ``roles`` empty: anybody, without a token. ``query`` is a structure whose fields are the query parameters.
    ``answer`` is what the handler returns, encoded as JSON; a handler of another ``media`` returns an ASGI application.
    ``alive`` needs a living loop. ``refusals`` come on top of those every route has.
    """

    method: Literal["GET", "POST", "PATCH", "DELETE"]
    path: str
    handler: Handler
    summary: str
    roles: frozenset[Role]
    answer: Any = None
    body: type | None = None
    query: type | None = None
    status: int = 200
    media: str = "application/json"
    refusals: tuple[int, ...] = ()
    alive: bool = False
    large: bool = False
    nearby: bool = False
    """Also answered without a token, or with any, to who is on the same machine."""

    @property
    def codes(self) -> tuple[int, ...]:
        """Every status a refusal of this route may have."""
        codes = {429, *self.refusals}
        codes |= {401, 403} if self.roles else set()
        codes |= {400, 408, 413, 415, 422} if self.body else set()
        codes |= {422} if self.query else set()
        codes |= {503} if self.alive else set()
        return tuple(sorted(codes))
