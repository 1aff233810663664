"""The searches that pages show: the last report of each, of the 200 that reported last."""

import pytest

from shoal.live.reported_searches import ReportedSearches
from shoal.wire.search_messages import SearchReport


def take(searches: ReportedSearches, *apps: str, tenant: str = "ann", best: int | None = None) -> None:
    for at, app in enumerate(apps):
        searches.take(app, tenant, 1000.0 + at, SearchReport(scheduler="asha", best=best))


def apps(searches: ReportedSearches, tenant: str | None = None) -> list[str]:
    return [row.app for row in searches.rows(tenant)]


def test_the_search_that_reported_last_comes_first_with_its_last_report_only() -> None:
    searches = ReportedSearches()
    take(searches, "a", "b", "c")
    take(searches, "a", best=3)
    assert apps(searches) == ["a", "c", "b"]
    (last, *_) = searches.rows(None)
    assert (last.tenant, last.at, last.report.best) == ("ann", 1000.0, 3)


@pytest.mark.parametrize(
    ("tenant", "seen"), [("ann", ["a"]), ("bob", ["b", "a"]), ("cat", []), (None, ["b", "a", "a"])]
)
def test_a_tenant_sees_its_own_searches_and_an_admin_all(tenant: str | None, seen: list[str]) -> None:
    searches = ReportedSearches()
    take(searches, "a", tenant="ann")
    take(searches, "a", "b", tenant="bob")
    assert apps(searches, tenant) == seen


def test_of_more_than_200_searches_the_one_that_reported_first_is_dropped() -> None:
    searches = ReportedSearches()
    names = [f"s{n}" for n in range(200)]
    take(searches, *names)
    take(searches, "s0")  # again: s1 is now the oldest
    assert len(apps(searches)) == 200
    take(searches, "new")
    assert set(names) - set(apps(searches)) == {"s1"}
