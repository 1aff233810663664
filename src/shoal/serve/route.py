"""Types of the route table: a route, the call a handler gets, and the objects that handlers share."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, Literal, TypeAlias, get_type_hints

from shoal.live.code_store import CodeStore
from shoal.live.reported_searches import ReportedSearches
from shoal.serve.cluster_feed import ClusterFeed
from shoal.serve.control_plane_api import ControlPlaneAPI
from shoal.serve.limits import Places, ServerLimits
from shoal.serve.logins import LoginCookie, Logins
from shoal.serve.metrics import Metrics
from shoal.serve.notifier import Notifier
from shoal.serve.order_waits import OrderWaits
from shoal.serve.tokens import Holder, Tokens
from shoal.serve.traces import Traces
from shoal.serve.usage_sampler import UsageSampler
from shoal.serve.watches import Watches
from shoal.wire.decision_messages import DecisionDetail
from shoal.wire.fields import Role
from shoal.wire.messages import AgentReport, WhatIf

AnswerWhatIf: TypeAlias = Callable[[WhatIf, str | None], Any]
"""Answers a what-if for a tenant (None: for an admin) with a document of plain values; may take seconds."""

DecideAgain: TypeAlias = Callable[[int, str | None, int], DecisionDetail]
"""Makes a past decision again, by its number, for a tenant (None: for an admin), with at most this many rows.

Raises ``LookupError`` if there is none; may take seconds.
"""


@dataclass(slots=True)
class AppContext:
    """Objects that all handlers share.

    ``hosts`` are the names that callers may address the server by, beside IP addresses (None: any).
    ``node_token_file`` makes a token for the agent of a node that was added and returns the name of its file; None if
    the control plane starts that agent itself. ``reports`` holds
    the latest report of each node's agent; ``listeners`` and ``questions`` count event streams and what-if simulations.
    """

    control_plane: ControlPlaneAPI
    tokens: Tokens
    what_if: AnswerWhatIf
    decide_again: DecideAgain
    version: str
    description: dict[str, Any]
    limits: ServerLimits
    metrics: Metrics
    notifier: Notifier
    feed: ClusterFeed
    session_notifier: Notifier
    hosts: frozenset[str] | None = None
    code: CodeStore | None = None
    node_token_file: Callable[[str], str | None] = lambda _: None
    traces: Traces | None = None
    reports: dict[str, AgentReport] = field(default_factory=dict)
    searches: ReportedSearches = field(default_factory=ReportedSearches)
    listeners: Places = field(init=False)
    questions: Places = field(init=False)
    logins: Logins = field(init=False)
    usage: UsageSampler = field(init=False)
    order_waits: OrderWaits = field(init=False)
    watches: Watches = field(init=False)

    def __post_init__(self) -> None:
        limits = self.limits
        self.logins = Logins(self.tokens)
        self.order_waits = OrderWaits(self.control_plane, self.notifier)
        self.usage = UsageSampler(self.control_plane)
        self.watches = Watches(self.control_plane, self.usage, self.notifier, self.searches)
        self.listeners = Places("listeners", limits.listeners, limits.listeners_each)
        self.questions = Places("questions", limits.questions, limits.questions_each)


@dataclass(frozen=True, slots=True)
class Call:
    """A request that passed every check; ``query`` and ``body`` are of the route's types.

    ``headers`` are sent with the answer.
    """

    holder: Holder
    path: Mapping[str, str]
    query: Any
    body: Any
    cookie: LoginCookie
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def caller(self) -> str:
        """The name that limits count under: a tenant's for all its tokens together, else the token's own."""
        return f"tenant {self.holder.tenant}" if self.holder.role == "user" else f"token {self.holder.name}"


Handler: TypeAlias = Callable[[AppContext, Call], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path.

    ``roles`` may call it; empty: anyone, without a token. The fields of ``query`` are the query parameters. The
    handler's return value is sent as JSON; with another ``media`` it returns an ASGI application; ``events`` is the
    data of the events `changed` that such a stream sends. ``alive`` routes answer 503 once the loop has died.
    ``refusals`` are statuses beyond those every route has. ``local`` routes also answer callers on the same machine
    without a token. Of a route with ``at_once``, this many requests of one tenant are answered at a time; the others
    wait.
    """

    method: Literal["GET", "POST", "PATCH", "DELETE"]
    path: str
    handler: Handler
    roles: frozenset[Role]
    body: type | None = None
    query: type | None = None
    status: int = 200
    media: str = "application/json"
    events: type | None = None
    refusals: tuple[int, ...] = ()
    alive: bool = False
    large: bool = False
    local: bool = False
    at_once: int | None = None

    @property
    def answer(self) -> Any:
        """Type of the answer: the handler's return type, text for other media, None without content."""
        if self.media != "application/json":
            return str
        returned = get_type_hints(self.handler)["return"]
        return None if returned is NoneType else returned

    @property
    def summary(self) -> str:
        """First line of the handler's docstring, without its full stop."""
        return (self.handler.__doc__ or "").partition("\n")[0].removesuffix(".")

    @property
    def codes(self) -> tuple[int, ...]:
        """Every status that a refusal of this route may have."""
        codes = {429, *self.refusals}
        codes |= {401, 403} if self.roles else set()
        codes |= {400, 408, 413, 415, 422} if self.body else set()
        codes |= {422} if self.query else set()
        codes |= {503} if self.alive else set()
        return tuple(sorted(codes))
