"""Expensive requests take turns, each tenant has its own share of the server, and a health check is always answered."""

import asyncio
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from shoal.live.job_lists import ANY_JOB, JobFilter
from shoal.serve import ServerLimits, limits
from shoal.serve.errors import RequestError
from shoal.serve.hosts import is_own_host, own_hosts
from shoal.serve.limits import Places, Rate, Turns
from shoal.wire.messages import JobRow, NewToken

if TYPE_CHECKING:
    from tests.serve.conftest import Harness, NewHarness


def test_requests_that_wait_for_a_turn_share_the_answer_begun_meanwhile() -> None:
    found: list[int] = []

    async def find() -> bytes:
        found.append(len(found))
        await asyncio.sleep(0.01)
        return b"%d" % found[-1]

    async def ask() -> list[bytes]:
        turns = Turns(most_waiting=30)
        first = await asyncio.gather(*(turns.answer("ana", 1, "jobs", find) for _ in range(24)))
        later = await turns.answer("ana", 1, "jobs", find)
        other = await asyncio.gather(turns.answer("ana", 1, "jobs", find), turns.answer("ana", 1, "nodes", find))
        return [*first, later, *other]

    assert asyncio.run(ask()) == [b"0", *[b"1"] * 23, b"2", b"3", b"4"]


@pytest.mark.parametrize(("clients", "spaced"), [(24, True), (5, False)])
def test_answers_to_a_caller_with_many_requests_are_spaced(
    monkeypatch: pytest.MonkeyPatch, clients: int, spaced: bool
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def find() -> bytes:
        await asyncio.sleep(0)
        return b""

    async def ask() -> None:
        turns = Turns(most_waiting=64)
        await asyncio.gather(*(turns.answer("ana", 1, "jobs", find) for _ in range(clients)))

    monkeypatch.setattr(limits, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    asyncio.run(ask())
    assert [0.0 < seconds <= 0.1 for seconds in pauses if seconds > 0] == ([True] if spaced else [])


def test_the_answers_kept_for_a_caller_are_no_more_than_its_open_requests() -> None:
    alive = most = 0

    class Answer(bytes):
        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    async def find() -> bytes:
        nonlocal alive, most
        alive += 1
        most = max(most, alive)
        await asyncio.sleep(0)
        return Answer(b"page")

    async def ask() -> None:
        turns = Turns(most_waiting=30)

        async def page_on(first: int) -> None:
            for offset in range(first, first + 50):
                await turns.answer("ana", 1, offset, find)

        await asyncio.gather(page_on(0), page_on(1000))

    asyncio.run(ask())
    assert most <= 4


def test_an_answer_begun_before_a_request_came_is_not_given_to_it() -> None:
    async def ask() -> bytes:
        turns, going = Turns(most_waiting=5), asyncio.Event()

        async def old() -> bytes:
            await going.wait()
            return b"old"

        async def new() -> bytes:
            return b"new"

        first = asyncio.create_task(turns.answer("ana", 2, "jobs", old))
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        second = asyncio.create_task(turns.answer("ana", 2, "jobs", new))
        await asyncio.sleep(0)
        going.set()
        assert await first == b"old"
        return await second

    assert asyncio.run(ask()) == b"new"


def test_too_many_waiting_requests_of_one_caller_are_refused_and_no_one_elses() -> None:
    async def ask() -> list[Any]:
        turns, going = Turns(most_waiting=1), asyncio.Event()

        async def find() -> bytes:
            await going.wait()
            return b"."

        async def one(caller: str) -> Any:
            try:
                return await turns.answer(caller, 1, "jobs", find)
            except RequestError as refusal:
                return refusal.status

        tasks = [asyncio.create_task(one(caller)) for caller in ("ana", "ana", "ana", "bo")]
        await asyncio.sleep(0)
        going.set()
        return await asyncio.gather(*tasks)

    assert asyncio.run(ask()) == [b".", b".", 429, b"."]


def test_a_failed_answer_frees_the_turn() -> None:
    async def fail() -> bytes:
        raise KeyError

    async def find() -> bytes:
        return b"."

    async def ask() -> bytes:
        turns = Turns(most_waiting=0)
        with pytest.raises(KeyError):
            await turns.answer("ana", 1, "jobs", fail)
        return await turns.answer("ana", 1, "jobs", find)

    assert asyncio.run(ask()) == b"."


def test_a_caller_has_its_places_and_all_together_theirs() -> None:
    places = Places("listeners", most=3, most_each=2)
    first, _ = places.begin("ana"), places.begin("ana")
    with pytest.raises(RequestError, match="too many listeners at a time"):
        places.begin("ana")
    places.begin("bo")
    with pytest.raises(RequestError):
        places.begin("cy")
    first()
    first()
    places.begin("cy")
    with pytest.raises(RequestError):
        places.begin("ana")


def test_listings_of_one_tenant_run_one_at_a_time_and_anothers_beside_them(harness: "Harness") -> None:
    running: dict[str | None, int] = {}
    most: dict[str | None, int] = {}

    def jobs(tenant: str | None, *, ended: bool = False, only: JobFilter = ANY_JOB) -> list[JobRow]:
        running[tenant] = running.get(tenant, 0) + 1
        most[tenant] = max(most.get(tenant, 0), running[tenant])
        asyncio.run(asyncio.sleep(0.005))
        running[tenant] -= 1
        return []

    harness.control_plane.jobs = jobs  # type: ignore[method-assign]

    async def ask() -> set[int]:
        async with harness.client() as client:
            asks = [
                client.get(f"/v1/jobs?offset={number}", **harness.authorized(who, {}))
                for number in range(8)
                for who in ("ana", "bo")
            ]
            return {response.status_code for response in await asyncio.gather(*asks)}

    assert asyncio.run(ask()) == {200}
    assert most == {"ana": 1, "bo": 1}


def test_a_tenant_asks_one_question_at_a_time_with_all_its_tokens_together(new_harness: "NewHarness") -> None:
    refused = threading.Event()
    harness = new_harness(what_if=lambda question, tenant: refused.wait(20))
    secret = harness.tokens.create(NewToken("ana-2", "user", "ana")).secret
    harness.secrets["ana-2"] = secret or ""

    async def ask() -> list[int]:
        async with harness.client() as client:
            asks = [
                asyncio.create_task(client.post("/v1/whatif", **harness.authorized(who, {"json": {}})))
                for who in ("ana", "ana-2", "bo")
            ]
            done, _ = await asyncio.wait(asks, timeout=20, return_when=asyncio.FIRST_COMPLETED)
            refused.set()
            assert [task.result().status_code for task in done] == [429]
            return sorted(response.status_code for response in await asyncio.gather(*asks))

    assert asyncio.run(ask()) == [200, 200, 429]


def test_a_page_has_a_hundred_jobs_unless_it_is_asked_for_more(harness: "Harness") -> None:
    harness.control_plane.owners = {f"job-{number:04}": "ana" for number in range(1500)}
    for query, first, count in (("", 0, 100), ("?limit=1000", 0, 1000), ("?offset=1450", 1450, 50), ("?limit=1", 0, 1)):
        rows = harness.call("GET", f"/v1/jobs{query}", "ana").json()
        assert (rows[0]["id"], len(rows)) == (f"job-{first:04}", count)
    for query, field in (("?limit=1001", "limit"), ("?limit=0", "limit"), ("?offset=-1", "offset")):
        assert harness.call("GET", f"/v1/jobs{query}", "ana").json()["field"] == field


def test_health_is_answered_at_any_rate_and_under_any_name(new_harness: "NewHarness") -> None:
    harness = new_harness(ServerLimits(unknown=Rate(0.001, 1.0)), hosts=frozenset({"shoal"}))
    answers = [
        harness.call("GET", "/v1/healthz", None, headers={"Host": host}).status_code for host in ("elsewhere", "x") * 5
    ]
    assert set(answers) == {200}
    assert [harness.call("GET", "/v1/jobs", None).status_code for _ in range(2)] == [401, 429]


def test_a_request_under_another_name_is_refused(new_harness: "NewHarness") -> None:
    harness = new_harness(hosts=own_hosts("127.0.0.1", ["cluster.example"]))

    def status(host: str, path: str = "/v1/jobs", who: str | None = "ana") -> httpx.Response:
        return harness.call("GET", path, who, headers={"Host": host})

    for host in ("localhost", "127.0.0.1:7433", "[::1]:7433", "10.1.2.3", "Cluster.Example.", "cluster.example:80"):
        assert status(host).status_code == 200, host
    refused = status("evil.example:7433")
    assert (refused.status_code, refused.json()["field"], refused.json()["value"]) == (421, "Host", "evil.example:7433")
    assert status("evil.example", "/v1/metrics", "admin").status_code == 421


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "127.0.0.1.evil.example", "localhost@evil", "localhost:x", "[::1", "a b", "localhost/x"],
)
def test_what_is_no_name_of_this_server_is_not_taken_for_one(host: str) -> None:
    assert not is_own_host(host, own_hosts("0.0.0.0"))
