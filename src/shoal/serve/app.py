"""The ASGI application: the route table behind the request pipeline."""

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.routing import BaseRoute
from starlette.routing import Route as Path

from shoal.live.code_store import CodeStore
from shoal.serve.agent_reports import AgentReports
from shoal.serve.cluster_feed import ClusterFeed
from shoal.serve.control_plane_api import ControlPlaneAPI
from shoal.serve.limits import ServerLimits
from shoal.serve.metrics import Metrics
from shoal.serve.notifier import Notifier
from shoal.serve.openapi import describe
from shoal.serve.request_pipeline import Endpoint, RequestPipeline
from shoal.serve.route import AnswerWhatIf, AppContext, DecideAgain
from shoal.serve.routes import ROUTES, by_path
from shoal.serve.tokens import Tokens
from shoal.serve.traces import Traces
from shoal.serve.web_files import WebPage

_UNKNOWN_PATH = "/{rest:path}"


def make_app(
    control_plane: ControlPlaneAPI,
    tokens: Tokens,
    *,
    what_if: AnswerWhatIf,
    decide_again: DecideAgain,
    version: str,
    limits: ServerLimits | None = None,
    hosts: frozenset[str] | None = None,
    code: CodeStore | None = None,
    node_token_file: Callable[[str], str | None] = lambda _: None,
    traces: Traces | None = None,
) -> Starlette:
    """Return the application: the API under ``/v1`` and the page at ``/``; ``app.state.close()`` ends its streams.

    ``hosts`` are the names that callers may address the server by, beside IP addresses; None allows any. ``code`` keeps
    the code that users ship; ``node_token_file`` as in ``AppContext``.
    """
    notifier, session_notifier = Notifier(), Notifier()
    control_plane.listen(notifier.notify)
    control_plane.sessions.on_change = session_notifier.notify
    context = AppContext(
        control_plane=control_plane,
        tokens=tokens,
        what_if=what_if,
        decide_again=decide_again,
        version=version,
        description=describe(ROUTES, version),
        limits=limits or ServerLimits(),
        metrics=Metrics(control_plane),
        notifier=notifier,
        session_notifier=session_notifier,
        feed=ClusterFeed(control_plane, notifier),
        hosts=hosts,
        code=code,
        node_token_file=node_token_file,
        traces=traces,
    )
    app = Starlette(routes=_paths(RequestPipeline(context)))

    def close() -> None:
        notifier.close()
        session_notifier.close()

    app.state.close = close
    app.state.limits = context.limits
    app.state.agent_reports = AgentReports(context)
    app.state.usage = context.usage
    return app


def _paths(pipeline: RequestPipeline) -> list[BaseRoute]:
    """Return the paths of the API, of the page, and of everything else."""
    elsewhere = Endpoint(pipeline, "elsewhere", {})
    return [
        *(Path(path, Endpoint(pipeline, path, methods)) for path, methods in by_path(ROUTES).items()),
        *(Path(path, WebPage(elsewhere)) for path in ("/", "/web/{file}")),
        Path(_UNKNOWN_PATH, elsewhere),
    ]
