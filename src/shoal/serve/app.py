"""The application: the route table, behind the door, as one ASGI application."""

from starlette.applications import Starlette
from starlette.routing import BaseRoute
from starlette.routing import Route as Path

from shoal.serve.bell import Bell
from shoal.serve.bounds import Limits
from shoal.serve.desk import Desk
from shoal.serve.door import Door, Doorway
from shoal.serve.metrics import Metrics
from shoal.serve.news import News
from shoal.serve.openapi import describe
from shoal.serve.routes import ROUTES, by_path
from shoal.serve.table import Question, Room
from shoal.serve.tokens import Tokens

_ELSEWHERE = "/{rest:path}"


def make_app(desk: Desk, tokens: Tokens, *, what_if: Question, version: str, limits: Limits | None = None) -> Starlette:
    """Everything under ``/v1``. ``app.state.close()`` ends what goes on or waits, for a quick shutdown."""
    bell = Bell()
    desk.listen(bell.ring)
    room = Room(
        desk=desk,
        tokens=tokens,
        what_if=what_if,
        version=version,
        description=describe(ROUTES, version),
        limits=limits or Limits(),
        metrics=Metrics(desk),
        bell=bell,
        news=News(desk, bell),
    )
    door = Door(room)
    paths: list[BaseRoute] = [Path(path, Doorway(door, path, methods)) for path, methods in by_path(ROUTES).items()]
    app = Starlette(routes=[*paths, Path(_ELSEWHERE, Doorway(door, "elsewhere", {}))])
    app.state.close = bell.close
    return app
