"""Server-sent events for pages: the rows that changed since the listener's last event."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from msgspec import Struct
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from shoal.core.errors import InputError
from shoal.serve.handlers import not_found_as_404
from shoal.serve.page_views import OF_ONE_JOB, VIEWS
from shoal.serve.route import AppContext, Call
from shoal.serve.watches import GAP_SECONDS, IDLE_SECONDS
from shoal.wire.fields import JobName, Text


class WatchQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """Which views to watch, separated by commas; the job of the views `job` and `training`; the last event's id."""

    views: Text = "cluster"
    job: JobName | None = None
    since: Text = ""


@dataclass(frozen=True, slots=True)
class WatchStream:
    """Response that streams the changes of some views; ``end`` is called when it is over."""

    context: AppContext
    call: Call
    views: tuple[str, ...]
    end: Callable[[], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream until the caller disconnects, its token ends or the server stops."""
        try:
            await StreamingResponse(self._events(), media_type="text/event-stream")(scope, receive, send)
        finally:
            self.end()

    async def _events(self) -> AsyncIterator[bytes]:
        context, query, watches = self.context, self.call.query, self.context.watches
        informed, notifier, holder = watches.informed_to(query.since), context.notifier, self.call.holder
        yield b"retry: 2000\n\n"
        while not notifier.closed and context.tokens.named(holder.name) is not None:
            made = [(view, await watches.fresh(holder.sees, view, query.job)) for view in self.views]
            event = watches.event(informed, made)
            if event is not None:
                informed = watches.number
                yield event
            seen = min(view.seen for _, view in made)
            if event is not None or seen < notifier.version:
                await asyncio.sleep(GAP_SECONDS)
            if not await notifier.changed_since(seen, IDLE_SECONDS) and not notifier.closed:
                yield b": still here\n\n"


async def watch(context: AppContext, call: Call) -> WatchStream:
    """Server-sent events: `changed` with the rows of views that changed, at most once a second."""
    query: WatchQuery = call.query
    views = tuple(dict.fromkeys(query.views.split(",")))
    for view in views:
        if view not in VIEWS:
            raise InputError("views", query.views, f"choose from {', '.join(VIEWS)}")
    if OF_ONE_JOB & {*views}:
        if query.job is None:
            raise InputError("job", None, "name the job to watch")
        with not_found_as_404(query.job):
            await asyncio.to_thread(context.control_plane.job, query.job, call.holder.sees)
    return WatchStream(context, call, views, context.listeners.begin(call.caller))
