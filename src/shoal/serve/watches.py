"""Rows of views that pages watch, and what changed in them.

A view is a set of rows by key. Listeners of one tenant share its rows, which are computed at most once a second, and
less often where that takes long. Each change has a number. An event's id states up to which number the listener is
informed, so that a listener that connects again gets only later changes.
"""

import asyncio
import secrets
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from shoal.live.reported_searches import ReportedSearches
from shoal.serve.control_plane_api import ControlPlaneAPI
from shoal.serve.notifier import Notifier
from shoal.serve.page_views import rows_of_view
from shoal.serve.usage_sampler import UsageSampler

IDLE_SECONDS = 15.0
"""Seconds after which a view is computed again although nothing happened: time alone changes some rows."""
GAP_SECONDS = 1.0
"""Seconds between two computations of a view, at least."""
_SHARE_OF_CORE = 0.04
"""Most of a core that computing one view may take: where it takes long, it is computed less often."""
_KEPT_SECONDS = 120.0
"""Seconds for which a view without listeners is kept, so that they can come back to it."""
_MOST_CHANGES = 32
_MOST_GONE = 20_000
"""Most keys of rows that are gone which a view remembers."""


@dataclass(slots=True)
class WatchedView:
    """The rows of one view as one tenant sees it, encoded, with the number of the change that each comes from."""

    find: Callable[[], dict[str, Any]]
    first: int
    """Number of the first change it knows: a listener informed up to an earlier one gets all rows."""
    rows: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=dict)
    """By key of a row that is gone, the number of that change; the earliest first."""
    changes: list[int] = field(default_factory=list)
    """Numbers of its latest changes."""
    _parts: dict[int, bytes | None] = field(default_factory=dict)
    """What changed after each number of ``changes``, as JSON: most listeners are informed to the same one."""
    seen: int = -1
    """Version of the notifier that the rows belong to."""
    due: float = 0.0
    cost: float = 0.0
    """CPU seconds of its last computation."""
    read_at: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def take(self, found: dict[str, bytes], number: int) -> bool:
        """Store new rows as change ``number``; return whether any differs."""
        gone = self.rows.keys() - found.keys()
        for key in gone:
            del self.rows[key]
            self.gone.pop(key, None)
            self.gone[key] = number
        changed = {key: (number, row) for key, row in found.items() if self.rows.get(key, (0, b""))[1] != row}
        self.rows |= changed
        while len(self.gone) > _MOST_GONE:
            self.first = max(self.first, self.gone.pop(next(iter(self.gone))))
        if not (gone or changed):
            return False
        self.changes = [*self.changes[-_MOST_CHANGES:], number]
        self._parts.clear()
        return True

    def since(self, number: int) -> bytes | None:
        """Return the rows changed after change ``number`` as JSON; None without any."""
        known = -1 if number < self.first else bisect_right(self.changes, number)
        if known == 0:  # too long ago to be one of ``changes``
            return self._since(number)
        if known not in self._parts:
            self._parts[known] = self._since(number)
        return self._parts[known]

    def _since(self, number: int) -> bytes | None:
        reset = number < self.first
        rows = [(key, row) for key, (at, row) in self.rows.items() if reset or at > number]
        gone = [] if reset else [key for key, at in self.gone.items() if at > number and key not in self.rows]
        if not (reset or rows or gone):
            return None
        encoded = b",".join(msgspec.json.encode(key) + b":" + row for key, row in rows)
        head = b'{"reset":%s,"gone":%s' % (b"true" if reset else b"false", msgspec.json.encode(gone))
        return head + b',"rows":{' + encoded + b"}}"


@dataclass(slots=True)
class Watches:
    """The views that are watched, by tenant, view and job. Used by the event loop's thread alone."""

    control_plane: ControlPlaneAPI
    usage: UsageSampler
    notifier: Notifier
    searches: ReportedSearches = field(default_factory=ReportedSearches)
    start: str = field(default_factory=lambda: secrets.token_hex(4))
    """Differs between starts of the control plane, whose change numbers begin anew."""
    number: int = 0
    """Number of the last change."""
    _views: dict[tuple[str | None, str, str | None], WatchedView] = field(default_factory=dict)

    async def fresh(self, tenant: str | None, view: str, job: str | None) -> WatchedView:
        """Return a view; its rows are found anew if something changed, at most once a second: it may have to wait."""
        loop = asyncio.get_running_loop()
        key = tenant, view, job
        if key not in self._views:
            self._drop_unread(loop.time())
            self.number += 1
            find = rows_of_view(self.control_plane, self.usage, view, tenant, job, self.searches)
            self._views[key] = WatchedView(find, self.number)
        made = self._views[key]
        made.read_at = loop.time()
        async with made.lock:
            if made.seen == self.notifier.version and loop.time() < made.due + IDLE_SECONDS:
                return made
            await asyncio.sleep(max(0.0, min(made.due - loop.time(), GAP_SECONDS)))
            if made.due <= loop.time():
                seen = self.notifier.version
                found, seconds = await asyncio.to_thread(_encoded, made.find)
                usual, made.cost = min(seconds, made.cost), seconds  # the first time takes longest
                made.seen, made.due = seen, loop.time() + max(GAP_SECONDS, usual / _SHARE_OF_CORE)
                self.number += made.take(found, self.number + 1)
        return made

    def informed_to(self, since: str) -> int:
        """Return the change up to which the listener with this last event is informed; -1 for none."""
        start, _, number = since.partition(".")
        return int(number) if start == self.start and number.isascii() and number.isdigit() else -1

    def event(self, informed: int, made: Iterable[tuple[str, WatchedView]]) -> bytes | None:
        """Return the event with the changes in these views after change ``informed``; None without any."""
        parts = [(view, part) for view, rows in made if (part := rows.since(informed)) is not None]
        if not parts:
            return None
        views = b",".join(b'"%s":%s' % (view.encode(), part) for view, part in parts)
        head = f'id: {self.start}.{self.number}\nevent: changed\ndata: {{"now":{time.time():.1f},"views":{{'
        return head.encode() + views + b"}}\n\n"

    def _drop_unread(self, now: float) -> None:
        for key in [key for key, view in self._views.items() if view.read_at < now - _KEPT_SECONDS]:
            del self._views[key]


def _encoded(find: Callable[[], dict[str, Any]]) -> tuple[dict[str, bytes], float]:
    """Return a view's rows as JSON, and the CPU seconds that they took."""
    began = time.thread_time()
    encode = msgspec.json.Encoder().encode
    found = {key: encode(row) for key, row in find().items()}
    return found, time.thread_time() - began
