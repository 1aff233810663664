"""The application: the route table, behind the door, as one ASGI application."""

from starlette.applications import Starlette
from starlette.routing import BaseRoute
from starlette.routing import Route as Path

from shoal.serve.cluster_feed import ClusterFeed
from shoal.serve.control_plane_api import ControlPlaneAPI
from shoal.serve.limits import ServerLimits
from shoal.serve.metrics import Metrics
from shoal.serve.notifier import Notifier
from shoal.serve.openapi import describe
from shoal.serve.request_pipeline import Doorway, RequestPipeline
from shoal.serve.route import AppContext, Question
from shoal.serve.routes import ROUTES, by_path
from shoal.serve.tokens import Tokens

_ELSEWHERE = "/{rest:path}"


def make_app(
    desk: ControlPlaneAPI, tokens: Tokens, *, what_if: Question, version: str, limits: ServerLimits | None = None
) -> Starlette:
    """Everything under ``/v1``. ``app.state.close()`` ends what goes on or waits, for a quick shutdown."""
    bell = Notifier()
    desk.listen(bell.ring)
    room = AppContext(
        desk=desk,
        tokens=tokens,
        what_if=what_if,
        version=version,
        description=describe(ROUTES, version),
        limits=limits or ServerLimits(),
        metrics=Metrics(desk),
        bell=bell,
        news=ClusterFeed(desk, bell),
    )
    door = RequestPipeline(room)
    paths: list[BaseRoute] = [Path(path, Doorway(door, path, methods)) for path, methods in by_path(ROUTES).items()]
    app = Starlette(routes=[*paths, Path(_ELSEWHERE, Doorway(door, "elsewhere", {}))])
    app.state.close = bell.close
    return app
