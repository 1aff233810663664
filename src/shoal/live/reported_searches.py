"""The searches of users, as they last reported them: in memory, for pages."""

import threading
from dataclasses import dataclass, field

from shoal.core.units import TenantId
from shoal.wire.search_messages import SearchReport, SearchRow

_MOST_SEARCHES = 200


@dataclass(slots=True)
class ReportedSearches:
    """The last report of each app's search, of the 200 that reported last."""

    _rows: dict[tuple[TenantId, str], SearchRow] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, app: str, tenant: TenantId, at: float, report: SearchReport) -> None:
        """Keep a tenant's report of a search."""
        with self._lock:
            self._rows.pop((tenant, app), None)
            self._rows[tenant, app] = SearchRow(app=app, tenant=tenant, at=at, report=report)
            if len(self._rows) > _MOST_SEARCHES:
                del self._rows[next(iter(self._rows))]

    def rows(self, tenant: TenantId | None) -> list[SearchRow]:
        """Return the searches that a tenant may see, the last to report first."""
        with self._lock:
            return [row for row in reversed(self._rows.values()) if tenant in (None, row.tenant)]
