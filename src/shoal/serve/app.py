"""The ASGI application: the route table behind the request pipeline."""

from starlette.applications import Starlette
from starlette.routing import BaseRoute
from starlette.routing import Route as Path

from shoal.live.code_store import CodeStore
from shoal.serve.cluster_feed import ClusterFeed
from shoal.serve.control_plane_api import ControlPlaneAPI
from shoal.serve.limits import ServerLimits
from shoal.serve.metrics import Metrics
from shoal.serve.notifier import Notifier
from shoal.serve.openapi import describe
from shoal.serve.request_pipeline import Endpoint, RequestPipeline
from shoal.serve.route import AnswerWhatIf, AppContext
from shoal.serve.routes import ROUTES, by_path
from shoal.serve.tokens import Tokens

_UNKNOWN_PATH = "/{rest:path}"


def make_app(
    control_plane: ControlPlaneAPI,
    tokens: Tokens,
    *,
    what_if: AnswerWhatIf,
    version: str,
    limits: ServerLimits | None = None,
    hosts: frozenset[str] | None = None,
    code: CodeStore | None = None,
) -> Starlette:
    """Return the application for everything under ``/v1``; ``app.state.close()`` ends long polls and event streams.

    ``hosts`` are the names that callers may address the server by, beside IP addresses; None allows any. ``code`` keeps
    the code that users ship.
    """
    notifier = Notifier()
    control_plane.listen(notifier.notify)
    session_notifier = Notifier()
    control_plane.sessions.on_change = session_notifier.notify
    context = AppContext(
        control_plane=control_plane,
        tokens=tokens,
        what_if=what_if,
        version=version,
        description=describe(ROUTES, version),
        limits=limits or ServerLimits(),
        metrics=Metrics(control_plane),
        notifier=notifier,
        session_notifier=session_notifier,
        feed=ClusterFeed(control_plane, notifier),
        hosts=hosts,
        code=code,
    )
    pipeline = RequestPipeline(context)
    paths: list[BaseRoute] = [
        Path(path, Endpoint(pipeline, path, methods)) for path, methods in by_path(ROUTES).items()
    ]
    app = Starlette(routes=[*paths, Path(_UNKNOWN_PATH, Endpoint(pipeline, "elsewhere", {}))])

    def close() -> None:
        notifier.close()
        session_notifier.close()

    app.state.close = close
    app.state.limits = context.limits
    return app
