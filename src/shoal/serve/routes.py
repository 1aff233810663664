"""The route table: each route once; the server and its OpenAPI description are both made from it."""

from collections.abc import Iterable
from typing import Any

from shoal.serve import handlers, metrics
from shoal.serve.route import Route
from shoal.wire.messages import (
    AcctRow,
    AgentOrders,
    AgentReport,
    AppBidMessage,
    AppOffer,
    ClusterRow,
    Hello,
    JobDetail,
    JobRow,
    LogPart,
    NewToken,
    NodeRow,
    Reshape,
    Role,
    Submission,
    SubmissionBatch,
    Submitted,
    TenantRow,
    TokenRow,
    WhatIf,
)

_PEOPLE: frozenset[Role] = frozenset({"admin", "user"})
_ADMIN: frozenset[Role] = frozenset({"admin"})
_AGENT: frozenset[Role] = frozenset({"agent"})
_EVERYBODY = _PEOPLE | _AGENT
_NOBODY: frozenset[Role] = frozenset()

_JOBS = (
    Route(
        "POST",
        "/v1/jobs",
        handlers.submit,
        "Submit a job; answered when it is durable",
        _PEOPLE,
        Submitted,
        body=Submission,
        status=201,
        alive=True,
        refusals=(409,),
    ),
    Route(
        "POST",
        "/v1/jobs/batch",
        handlers.submit_batch,
        "Submit many jobs, all or none; answered when they are durable",
        _PEOPLE,
        Submitted,
        body=SubmissionBatch,
        status=201,
        alive=True,
        large=True,
        refusals=(409,),
    ),
    Route("GET", "/v1/jobs", handlers.jobs, "The jobs one may see", _PEOPLE, list[JobRow], query=handlers.JobsQuery),
    Route("GET", "/v1/jobs/{job}", handlers.job, "Everything about one job", _PEOPLE, JobDetail, refusals=(404,)),
    Route(
        "DELETE",
        "/v1/jobs/{job}",
        handlers.cancel,
        "Cancel a job",
        _PEOPLE,
        status=204,
        refusals=(404, 409, 422),
        alive=True,
    ),
    Route(
        "PATCH",
        "/v1/jobs/{job}",
        handlers.reshape,
        "Give a job another gang",
        _PEOPLE,
        body=Reshape,
        status=204,
        refusals=(404, 409),
        alive=True,
    ),
    Route(
        "GET",
        "/v1/jobs/{job}/log",
        handlers.log,
        "A piece of a rank's log",
        _PEOPLE,
        LogPart,
        query=handlers.LogQuery,
        refusals=(404, 409),
    ),
)
_APPS = (
    Route(
        "GET",
        "/v1/apps/{app}/offer",
        handlers.offer,
        "How an app stands before the next auction, and what will be on offer",
        _PEOPLE,
        AppOffer,
        refusals=(404,),
    ),
    Route(
        "POST",
        "/v1/apps/{app}/bid",
        handlers.bid,
        "Say what GPUs are worth to an app, for the jobs it has now; answered when it is durable",
        _PEOPLE,
        body=AppBidMessage,
        status=204,
        refusals=(404,),
        alive=True,
    ),
)
_CLUSTER = (
    Route("GET", "/v1/nodes", handlers.nodes, "The nodes", _PEOPLE, list[NodeRow]),
    Route("GET", "/v1/share", handlers.share, "What tenants hold and have had", _PEOPLE, list[TenantRow]),
    Route("GET", "/v1/acct", handlers.acct, "Jobs that ended and what they took", _PEOPLE, list[AcctRow]),
    Route("GET", "/v1/cluster", handlers.cluster, "The cluster in one look", _PEOPLE, ClusterRow),
    Route(
        "POST",
        "/v1/whatif",
        handlers.what_if,
        "Other policies, more machines or one more job, simulated from now on",
        _PEOPLE,
        Any,
        body=WhatIf,
        refusals=(409, 503),
    ),
    Route(
        "GET",
        "/v1/events",
        handlers.events,
        "Server-sent events: `changed` with a ClusterRow at each change",
        _PEOPLE,
        str,
        media="text/event-stream",
    ),
)
_AGENTS = (
    Route(
        "POST",
        "/v1/agent/hello",
        handlers.hello,
        "An agent introduces itself",
        _AGENT,
        AgentOrders,
        body=Hello,
        alive=True,
        refusals=(409,),
    ),
    Route(
        "POST",
        "/v1/agent/sync",
        handlers.sync,
        "An agent reports and is given its orders",
        _AGENT,
        AgentOrders,
        body=AgentReport,
        alive=True,
        large=True,
        refusals=(409,),
    ),
)
_DOOR = (
    Route(
        "POST",
        "/v1/tokens",
        handlers.create_token,
        "Make a token; its secret is told this once",
        _ADMIN,
        TokenRow,
        body=NewToken,
        status=201,
        refusals=(409,),
    ),
    Route("GET", "/v1/tokens", handlers.tokens, "The tokens there are", _ADMIN, list[TokenRow]),
    Route(
        "DELETE", "/v1/tokens/{token}", handlers.revoke_token, "End a token", _ADMIN, status=204, refusals=(404, 409)
    ),
    Route(
        "GET",
        "/v1/metrics",
        handlers.metrics,
        "Figures for Prometheus; also without a token from the same machine",
        _ADMIN | _AGENT,
        str,
        media=metrics.MEDIA,
        nearby=True,
    ),
    Route("GET", "/v1/healthz", handlers.health, "Whether the loop lives", _NOBODY, handlers.Health, alive=True),
    Route("GET", "/v1/openapi.json", handlers.openapi, "This description", _EVERYBODY, Any),
)

ROUTES: tuple[Route, ...] = (*_JOBS, *_APPS, *_CLUSTER, *_AGENTS, *_DOOR)


def by_path(routes: Iterable[Route]) -> dict[str, dict[str, Route]]:
    """The routes of each path, by method."""
    paths: dict[str, dict[str, Route]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method] = route
    return paths
