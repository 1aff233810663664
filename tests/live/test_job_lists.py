"""Lists of jobs: their order, their pages, and that nobody waits while they are made."""

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from shoal.core.commands import Start
from shoal.core.events import Event, JobCancelled, JobCrashed, JobStarted, JobSubmitted
from shoal.core.job import JobSpec, Launch
from shoal.core.topology import Placement, parse_cluster
from shoal.live.accounts import Accounts
from shoal.live.job_lists import ANY_JOB, JobFilter, JobLists
from shoal.live.views import ClusterViews
from shoal.wire.messages import StartForecast

TOPOLOGY = parse_cluster("gpu:2x4")
NONE: Mapping[str, StartForecast] = {}


def submitted(id: str, tenant: str = "ann", app: str | None = None, name: str = "job") -> Event:
    return JobSubmitted(0.0, JobSpec(id, 0.0, 1, 9.0, 1, 1, tenant=tenant, app=app), Launch(name, ("true",)))


def started(job: int, at: float) -> list[Event]:
    return [JobStarted(at, job, 1, 1.0, 0.0)]


@pytest.fixture
def accounts() -> Accounts:
    """Jobs a to h: c and a run, e waits after a crash, f was cancelled before d, and the others wait."""
    accounts = Accounts(TOPOLOGY.nodes)
    owners = {"a": "ann", "b": "bob", "c": "ann", "d": "ann", "e": "ann", "f": "ann", "g": "bob", "h": "ann"}
    accounts.apply_events(
        [submitted(id, owner, "sweep" if id in "ch" else None, f"n{id}") for id, owner in owners.items()]
    )
    seats = Placement(((0, 1),))
    accounts.apply_commands(3.0, [Start(2, 1, seats)])
    accounts.apply_commands(4.0, [Start(0, 1, seats), Start(4, 1, seats)])
    accounts.apply_events([*started(2, 5.0), *started(0, 5.0), JobCrashed(6.0, 4, 1, 0.0, True, "", 30.0)])
    accounts.apply_events([JobCancelled(7.0, 5), JobCancelled(8.0, 3)])
    return accounts


def ids(lists: JobLists, tenant: str | None, only: JobFilter = ANY_JOB, *, ended: bool = False) -> str:
    return "".join(account.spec.id for account, _ in lists.read(tenant, only, ended=ended, forecasts=NONE))


def test_running_jobs_come_by_start_then_waiting_ones_by_expected_start_then_the_last_to_end(
    accounts: Accounts,
) -> None:
    lists = JobLists(accounts, threading.RLock())
    soon = {"g": StartForecast(5.0, 1.0, 9.0), "h": StartForecast(2.0, 1.0, 3.0)}
    listed = lists.read(None, ANY_JOB, ended=True, forecasts=soon)
    assert [(account.spec.id, position) for account, position in listed] == [
        ("c", None), ("a", None), ("h", 1), ("g", 2), ("b", 3), ("e", 4), ("d", None), ("f", None),
    ]  # fmt: skip
    assert ids(lists, "ann") == "caeh"
    assert ids(lists, "bob", ended=True) == "bg"


@pytest.mark.parametrize(
    ("only", "found"),
    [
        (JobFilter(limit=3), "cab"),
        (JobFilter(offset=3, limit=3), "egh"),
        (JobFilter(offset=6, limit=3), "df"),
        (JobFilter(offset=99, limit=3), ""),
        (JobFilter(tenant="bob"), "bg"),
        (JobFilter(app="sweep"), "ch"),
        (JobFilter(match="nb"), "b"),
        (JobFilter(match="d"), "d"),
        (JobFilter(match="x"), ""),
        (JobFilter(tenant="ann", app="sweep", offset=1), "h"),
    ],
)
def test_a_filter_selects_jobs_and_then_a_page(accounts: Accounts, only: JobFilter, found: str) -> None:
    assert ids(JobLists(accounts, threading.RLock()), None, only, ended=True) == found


def test_a_position_counts_from_the_beginning_of_the_queue_on_every_page(accounts: Accounts) -> None:
    lists = JobLists(accounts, threading.RLock())
    page = lists.read(None, JobFilter(offset=4, limit=2), ended=False, forecasts=NONE)
    assert [(account.spec.id, position) for account, position in page] == [("g", 3), ("h", 4)]


def test_a_list_shows_every_change_before_it_was_read(accounts: Accounts) -> None:
    lists = JobLists(accounts, threading.RLock())
    assert (ids(lists, "ann"), ids(lists, "bob"), ids(lists, None)) == ("caeh", "bg", "cabegh")
    accounts.apply_events([submitted("i", "bob")])
    assert (ids(lists, "ann"), ids(lists, "bob"), ids(lists, None)) == ("caeh", "bgi", "cabeghi")
    accounts.apply_commands(9.0, [Start(6, 1, Placement(((1, 1),)))])
    assert (ids(lists, "ann"), ids(lists, "bob"), ids(lists, None)) == ("caeh", "gbi", "cagbehi")
    accounts.apply_events([JobCancelled(9.0, 0)])
    assert (ids(lists, "ann"), ids(lists, "bob"), ids(lists, None)) == ("ceh", "gbi", "cgbehi")


def test_a_row_shows_its_job_as_it_was_when_the_list_was_read(accounts: Accounts) -> None:
    page = JobLists(accounts, threading.RLock()).read("ann", ANY_JOB, ended=False, forecasts=NONE)
    accounts.apply_events([JobCancelled(9.0, 0)])
    rows = ClusterViews(accounts, None, TOPOLOGY, NONE, 10.0, 0.0, "ann").jobs(page)
    assert [(row.id, row.state, row.position) for row in rows] == [
        ("c", "running", None), ("a", "running", None), ("e", "held", 1), ("h", "pending", 2),
    ]  # fmt: skip


class Watching(Mapping[str, StartForecast]):
    """Forecasts that note, whenever they are read, whether the lock is free."""

    def __init__(self, lock: threading.RLock) -> None:
        self.lock, self.free = lock, set[bool]()

    def __getitem__(self, key: str) -> StartForecast:
        thread = threading.Thread(target=self._try)
        thread.start()
        thread.join()
        raise KeyError(key)

    def _try(self) -> None:
        free = self.lock.acquire(blocking=False)
        self.free.add(free)
        if free:
            self.lock.release()

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 1


def test_jobs_are_sorted_and_described_while_the_accounts_are_free_to_change(accounts: Accounts) -> None:
    lock = threading.RLock()
    watching = Watching(lock)
    page = JobLists(accounts, lock).read("ann", ANY_JOB, ended=False, forecasts=watching)
    assert watching.free == {True}
    watching.free.clear()
    assert len(ClusterViews(accounts, None, TOPOLOGY, watching, 10.0, 0.0, "ann").jobs(page)) == 4
    assert watching.free == {True}


def test_ended_jobs_that_are_no_longer_in_memory_follow_those_that_are(accounts: Accounts) -> None:
    lists = JobLists(accounts, threading.RLock())
    gone = Accounts(TOPOLOGY.nodes)
    gone.apply_events([submitted("z"), submitted("y", app="sweep")])
    older = [replace(account, number=number) for account, number in zip(gone.accounts.values(), (100, 5), strict=True)]

    def found(only: JobFilter) -> str:
        page = lists.read(None, only, ended=True, forecasts=NONE, older=iter(older))
        return "".join(account.spec.id for account, _ in page)

    assert found(ANY_JOB) == "cabeghdfz", "number 5 is f, which is still in memory"
    assert (found(JobFilter(offset=7, limit=1)), found(JobFilter(offset=8, limit=5))) == ("f", "z")
    assert found(JobFilter(match="z")) == "z"
