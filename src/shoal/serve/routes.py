"""The route table, from which the server and its OpenAPI description are generated."""

from collections.abc import Iterable

from shoal.serve import (
    code_handlers,
    decision_handlers,
    handlers,
    job_verb_handlers,
    login_handlers,
    metrics,
    node_handlers,
    policy_handlers,
    session_handlers,
    watch,
)
from shoal.serve.route import Route
from shoal.wire import messages as wire
from shoal.wire.fields import Role
from shoal.wire.login_messages import NewLogin
from shoal.wire.policy_messages import PolicyChoice, ShadowChoice
from shoal.wire.search_messages import SearchReport
from shoal.wire.watch_events import ViewsEvent

_PEOPLE: frozenset[Role] = frozenset({"admin", "user"})
_ADMIN: frozenset[Role] = frozenset({"admin"})
_AGENT: frozenset[Role] = frozenset({"agent"})
_JOIN: frozenset[Role] = frozenset({"join"})
_ANY_TOKEN = _PEOPLE | _AGENT
_NO_TOKEN: frozenset[Role] = frozenset()

_WRITES = (409, 507)
"""Refusals of routes that write: a conflict, or no space on the control plane's disk."""

_CHANGES = (404, 422, *_WRITES)

_JOBS = (
    Route("POST", "/v1/jobs", handlers.submit, _PEOPLE, body=wire.Submission, status=201, alive=True, refusals=_WRITES),
    Route(
        "POST",
        "/v1/jobs/batch",
        handlers.submit_batch,
        _PEOPLE,
        body=wire.SubmissionBatch,
        status=201,
        alive=True,
        large=True,
        refusals=_WRITES,
    ),
    Route("GET", "/v1/jobs", handlers.jobs, _PEOPLE, query=handlers.JobsQuery, at_once=1),
    Route("GET", "/v1/jobs/{job}", handlers.job, _PEOPLE, refusals=(404,), at_once=2),
    Route(
        "DELETE",
        "/v1/jobs/{job}",
        handlers.cancel,
        _PEOPLE,
        query=handlers.CancelQuery,
        status=204,
        refusals=(404, 422, *_WRITES),
        alive=True,
    ),
    Route(
        "PATCH",
        "/v1/jobs/{job}",
        handlers.reshape,
        _PEOPLE,
        body=wire.Reshape,
        status=204,
        refusals=(404, *_WRITES),
        alive=True,
    ),
    Route("GET", "/v1/jobs/{job}/training", handlers.training, _PEOPLE, refusals=(404,), at_once=2),
    Route("GET", "/v1/jobs/{job}/log", handlers.log, _PEOPLE, query=handlers.LogQuery, refusals=(404, 409), at_once=16),
)
_CODE = (
    Route("GET", "/v1/code/{digest}", code_handlers.code_status, _PEOPLE, query=code_handlers.CodeQuery, at_once=2),
    Route(
        "POST",
        "/v1/code/{digest}",
        code_handlers.send_code,
        _PEOPLE,
        body=wire.CodePart,
        query=code_handlers.CodeQuery,
        large=True,
        refusals=(507,),
    ),
    Route(
        "GET",
        "/v1/agent/code/{digest}",
        code_handlers.fetch_code,
        _AGENT,
        query=code_handlers.FetchQuery,
        refusals=(404,),
    ),
)
_VERBS = (
    *(
        Route("POST", f"/v1/jobs/{{job}}/{verb.__name__}", verb, _PEOPLE, status=204, refusals=_CHANGES, alive=True)
        for verb in (job_verb_handlers.hold, job_verb_handlers.release, job_verb_handlers.requeue)
    ),
    Route(
        "POST",
        "/v1/jobs/{job}/priority",
        job_verb_handlers.prioritise,
        _PEOPLE,
        body=wire.PriorityMessage,
        status=204,
        refusals=_CHANGES,
        alive=True,
    ),
    Route(
        "POST",
        "/v1/priority",
        job_verb_handlers.prioritise_many,
        _PEOPLE,
        body=wire.PrioritiseMany,
        refusals=_WRITES,
        alive=True,
    ),
    Route(
        "POST", "/v1/cancel", job_verb_handlers.cancel_many, _PEOPLE, body=wire.CancelMany, refusals=_WRITES, alive=True
    ),
)
_SESSIONS = (
    Route(
        "POST",
        "/v1/jobs/{job}/sessions",
        session_handlers.open_session,
        _PEOPLE,
        body=wire.NewSession,
        status=201,
        refusals=(404,),
        alive=True,
    ),
    Route(
        "POST",
        "/v1/sessions/{session}/input",
        session_handlers.put_input,
        _PEOPLE,
        body=wire.SessionInput,
        refusals=(404,),
    ),
    Route(
        "GET",
        "/v1/sessions/{session}/output",
        session_handlers.get_output,
        _PEOPLE,
        query=session_handlers.OutputQuery,
        refusals=(404,),
    ),
    Route("DELETE", "/v1/sessions/{session}", session_handlers.close, _PEOPLE, status=204, refusals=(404,)),
    Route(
        "POST",
        "/v1/agent/sessions/{session}/input",
        session_handlers.get_input,
        _AGENT,
        body=wire.SessionInputPoll,
        refusals=(404,),
    ),
    Route(
        "POST",
        "/v1/agent/sessions/{session}/output",
        session_handlers.put_output,
        _AGENT,
        body=wire.SessionOutput,
        refusals=(404,),
    ),
)
_APPS = (
    Route("GET", "/v1/apps/{app}/offer", handlers.offer, _PEOPLE, refusals=(404,), at_once=2),
    Route(
        "POST",
        "/v1/apps/{app}/bid",
        handlers.bid,
        _PEOPLE,
        body=wire.AppBidMessage,
        status=204,
        refusals=(404, 507),
        alive=True,
    ),
)
_SEARCHES = (
    Route("GET", "/v1/searches", handlers.searches, _PEOPLE, at_once=1),
    Route(
        "POST", "/v1/apps/{app}/search", handlers.report_search, _PEOPLE, body=SearchReport, status=204, refusals=(404,)
    ),
)
_CLUSTER = (
    Route("GET", "/v1/nodes", handlers.nodes, _PEOPLE, at_once=1),
    Route(
        "POST",
        "/v1/nodes/{node}/drain",
        handlers.drain,
        _ADMIN,
        body=wire.DrainNode,
        status=204,
        alive=True,
    ),
    Route("POST", "/v1/nodes", node_handlers.add_node, _ADMIN, body=wire.NewNode, status=201, alive=True),
    Route("DELETE", "/v1/nodes/{node}", node_handlers.remove_node, _ADMIN, status=204, refusals=(422,), alive=True),
    Route("POST", "/v1/nodes/{node}/resume", handlers.resume_node, _ADMIN, status=204, refusals=(422,), alive=True),
    Route("GET", "/v1/share", handlers.share, _PEOPLE, at_once=1),
    Route("GET", "/v1/quotas", handlers.quotas, _ADMIN),
    Route("POST", "/v1/quotas", handlers.set_quota, _ADMIN, body=wire.QuotaMessage, status=204, alive=True),
    Route("GET", "/v1/acct", handlers.acct, _PEOPLE, at_once=1),
    Route("GET", "/v1/cluster", handlers.cluster, _PEOPLE),
    Route("GET", "/v1/policies", policy_handlers.policies, _PEOPLE),
    Route("GET", "/v1/policy", policy_handlers.in_force, _PEOPLE),
    Route("POST", "/v1/policy", policy_handlers.switch, _ADMIN, body=PolicyChoice, status=204, alive=True),
    Route("POST", "/v1/policy/shadow", policy_handlers.shadow, _ADMIN, body=ShadowChoice, status=204, alive=True),
    Route("POST", "/v1/whatif", handlers.what_if, _PEOPLE, body=wire.WhatIf, refusals=(409, 503)),
    Route(
        "GET", "/v1/decisions", decision_handlers.decisions, _PEOPLE, query=decision_handlers.DecisionsQuery, at_once=1
    ),
    Route(
        "GET",
        "/v1/decisions/{decision}",
        decision_handlers.decision,
        _PEOPLE,
        query=decision_handlers.DecisionQuery,
        refusals=(404, 503),
    ),
    Route("GET", "/v1/events", handlers.events, _PEOPLE, media="text/event-stream", events=wire.ClusterRow),
    Route(
        "GET",
        "/v1/watch",
        watch.watch,
        _PEOPLE,
        query=watch.WatchQuery,
        media="text/event-stream",
        events=ViewsEvent,
        refusals=(404,),
    ),
)
_AGENTS = (
    Route("POST", "/v1/agent/join", node_handlers.join, _JOIN, body=wire.NewNode, status=201, alive=True),
    Route("POST", "/v1/agent/hello", handlers.hello, _AGENT, body=wire.Hello, alive=True, refusals=(409,)),
    Route(
        "POST", "/v1/agent/sync", handlers.sync, _AGENT, body=wire.AgentReport, alive=True, large=True, refusals=(409,)
    ),
)
_SERVER = (
    Route("POST", "/v1/tokens", handlers.create_token, _ADMIN, body=wire.NewToken, status=201, refusals=_WRITES),
    Route("GET", "/v1/tokens", handlers.tokens, _ADMIN),
    Route("DELETE", "/v1/tokens/{token}", handlers.revoke_token, _ADMIN, status=204, refusals=(404, *_WRITES)),
    Route("GET", "/v1/metrics", handlers.metrics, _ADMIN | _AGENT, media=metrics.MEDIA, local=True),
    Route("GET", "/v1/healthz", handlers.health, _NO_TOKEN, alive=True),
    Route("GET", "/v1/openapi.json", handlers.openapi, _ANY_TOKEN),
)

_LOGINS = (
    Route("POST", "/v1/login", login_handlers.log_in, _NO_TOKEN, body=NewLogin, refusals=(401, 403)),
    Route("GET", "/v1/login", login_handlers.login, _PEOPLE),
    Route("DELETE", "/v1/login", login_handlers.log_out, _PEOPLE, status=204),
    Route("POST", "/v1/login/code", login_handlers.login_code, _PEOPLE, status=201),
)

ROUTES: tuple[Route, ...] = (
    *_JOBS,
    *_CODE,
    *_VERBS,
    *_SESSIONS,
    *_APPS,
    *_SEARCHES,
    *_CLUSTER,
    *_AGENTS,
    *_SERVER,
    *_LOGINS,
)


def by_path(routes: Iterable[Route]) -> dict[str, dict[str, Route]]:
    """Group routes by path, then by method."""
    paths: dict[str, dict[str, Route]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method] = route
    return paths
