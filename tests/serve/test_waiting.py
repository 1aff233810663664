"""Waiting without holding a thread: agents wait for orders, listeners for changes, and a shutdown for nobody."""

import asyncio
import http.client
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx

from shoal.core.errors import InputError
from shoal.serve import ServerLimits
from shoal.serve.notifier import Notifier
from shoal.wire.messages import LogRead, WhatIf

if TYPE_CHECKING:
    from tests.serve.conftest import Harness, NewHarness, Serving


def report(node: str = "n0", known: int = 1, wait: float = 60.0, boot: str = "b") -> dict[str, Any]:
    return {"protocol": 1, "node": node, "boot": boot, "known": known, "runs": [], "wait": wait}


def test_an_agent_that_waits_is_answered_when_its_own_orders_change(harness: "Harness") -> None:
    async def scene() -> tuple[list[str], dict[str, Any]]:
        order: list[str] = []

        async def poll(node: str) -> dict[str, Any]:
            async with harness.client() as client:
                response = await client.post(
                    "/v1/agent/sync", timeout=60, **harness.authorized(f"agent-{node}", {"json": report(node)})
                )
                order.append(node)
                answer: dict[str, Any] = response.json()
                return answer

        polls = [asyncio.create_task(poll(node)) for node in ("n0", "n1")]
        while len(harness.control_plane.reports) < 2:
            await asyncio.sleep(0.001)
        threads = threading.active_count()
        harness.control_plane.change()  # a change that concerns neither
        await asyncio.sleep(0.05)
        assert order == []
        assert threading.active_count() == threads
        for node in ("n1", "n0"):
            threading.Thread(target=harness.control_plane.change, args=(node,)).start()
            while node not in order:
                await asyncio.sleep(0.001)
        return order, await polls[0]

    order, orders = asyncio.run(scene())
    assert order == ["n1", "n0"]
    assert orders["generation"] == 2


def test_an_agent_is_answered_at_once_for_news_for_a_log_and_when_it_will_not_wait(harness: "Harness") -> None:
    for body in (report(known=0), report(wait=0)):
        assert harness.call("POST", "/v1/agent/sync", "agent", json=body).json()["generation"] == 1
    harness.control_plane.reads = [LogRead(1, "hers-aaaa", 1, 0, 0, 10)]
    assert harness.call("POST", "/v1/agent/sync", "agent", json=report()).json()["reads"][0]["read"] == 1
    harness.control_plane.reads = []
    assert harness.call("POST", "/v1/agent/sync", "agent", json=report(wait=0.01)).json()["generation"] == 1


def test_a_report_that_waited_is_not_repeated_over_a_newer_one(harness: "Harness") -> None:
    """The agent's other thread has said more meanwhile: what it said first must not be the last word."""
    newer = {**report(wait=0), "runs": [{"job": 3, "incarnation": 1, "phase": "running"}]}

    async def scene() -> None:
        async with harness.client() as client:
            first = asyncio.create_task(
                client.post("/v1/agent/sync", timeout=60, **harness.authorized("agent", {"json": report()}))
            )
            while not harness.control_plane.reports:
                await asyncio.sleep(0.001)
            await client.post("/v1/agent/sync", **harness.authorized("agent", {"json": newer}))
            harness.control_plane.change("n0")
            assert (await first).json()["generation"] == 2

    asyncio.run(scene())
    assert [len(heard.runs) for heard in harness.control_plane.reports] == [0, 1, 1]


def test_notifications_in_a_burst_cause_few_checks_and_an_error_reaches_only_its_waiter() -> None:
    async def scene() -> tuple[int, bool, str]:
        notifier, looks = Notifier(), 0

        def counted() -> bool:
            nonlocal looks
            looks += 1
            return notifier.version >= 1000

        def broken() -> bool:
            if notifier.version:
                raise LookupError("gone")
            return False

        good = asyncio.create_task(notifier.until(counted, 60))
        bad = asyncio.create_task(notifier.until(broken, 60))
        await asyncio.sleep(0)

        def burst() -> None:
            for _ in range(250):
                notifier.notify()

        threads = [threading.Thread(target=burst) for _ in range(4)]
        for thread in threads:
            thread.start()
        woken = await good
        try:
            await bad
        except LookupError as error:
            return looks, woken, str(error)
        return looks, woken, ""

    looks, woken, error = asyncio.run(scene())
    assert woken
    assert error == "gone"
    assert looks < 100


def listen(port: int, secret: str) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/v1/events", headers={"Authorization": f"Bearer {secret}"})
    return connection, connection.getresponse()


def event(response: http.client.HTTPResponse) -> dict[str, Any]:
    assert response.readline() == b"event: changed\n"
    row: dict[str, Any] = json.loads(response.readline().removeprefix(b"data: "))
    assert response.readline() == b"\n"
    return row


def test_a_listener_gets_the_present_state_then_each_change_then_the_end(
    harness: "Harness", serving: "Serving"
) -> None:
    server = serving()
    connection, response = listen(server.port, harness.secrets["ana"])
    assert response.headers["Content-Type"].startswith("text/event-stream")
    assert event(response)["decisions"] == 2
    for _ in range(50):
        harness.control_plane.change("n0")
    assert event(response)["decisions"] == 52
    server.stop()
    assert response.read() == b""
    connection.close()


def test_listeners_are_bounded_and_one_that_leaves_makes_room(new_harness: "NewHarness", serving: "Serving") -> None:
    harness = new_harness(ServerLimits(listeners=1))
    port = serving(harness.app).port
    first, response = listen(port, harness.secrets["ana"])
    event(response)
    second, refused = listen(port, harness.secrets["bo"])
    assert (refused.status, refused.headers["Retry-After"]) == (429, "5")
    for connection in (response, first, second):
        connection.close()
    status = 429
    for _ in range(500):
        third, answer = listen(port, harness.secrets["bo"])
        status = answer.status
        answer.close()
        third.close()
        if status == 200:
            break
        time.sleep(0.01)
    assert status == 200


def test_shutting_down_answers_waiting_requests(harness: "Harness", serving: "Serving") -> None:
    server = serving()

    def poll() -> int:
        headers = {"Authorization": f"Bearer {harness.secrets['agent']}"}
        answer = httpx.post(f"{server.url}/v1/agent/sync", json=report(), headers=headers, timeout=30)
        generation: int = answer.json()["generation"]
        return generation

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(poll)
        while not harness.control_plane.reports:
            time.sleep(0.001)
        server.stop()
        assert answer.result(30) == 1


def test_a_question_is_answered_refused_when_wrong_and_put_off_while_others_are_thought_about(
    new_harness: "NewHarness",
) -> None:
    go = threading.Event()

    def slow(question: WhatIf, tenant: str | None) -> str | None:
        go.wait(30)
        if question.add:
            raise InputError("add", question.add, "must be a cluster such as v100:1x8")
        return tenant

    harness = new_harness(ServerLimits(questions=2), what_if=slow)

    async def scene() -> list[httpx.Response]:
        async with harness.client() as client:

            def ask(who: str, **body: Any) -> asyncio.Task[httpx.Response]:
                return asyncio.create_task(
                    client.post("/v1/whatif", timeout=60, **harness.authorized(who, {"json": body}))
                )

            first = [ask("ana"), ask("admin", add="nonsense")]
            await asyncio.sleep(0.05)
            third = await ask("bo")
            go.set()
            return [*await asyncio.gather(*first), third, await ask("admin")]

    hers, wrong, late, later = asyncio.run(scene())
    assert (hers.status_code, hers.json()) == (200, "ana")
    assert (wrong.status_code, wrong.json()["field"]) == (422, "add")
    assert (late.status_code, late.headers["Retry-After"]) == (429, "5")
    assert (later.status_code, later.json()) == (200, None)


def test_a_long_question_does_not_hold_up_a_shutdown(new_harness: "NewHarness", serving: "Serving") -> None:
    begun, over = threading.Event(), threading.Event()

    def endless(question: WhatIf, tenant: str | None) -> None:
        begun.set()
        over.wait(60)

    harness = new_harness(what_if=endless)
    server = serving(harness.app)
    headers = {"Authorization": f"Bearer {harness.secrets['ana']}"}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(httpx.post, f"{server.url}/v1/whatif", json={}, headers=headers, timeout=30)
        begun.wait(30)
        server.stop()
        assert answer.result(30).status_code == 503
    assert not over.is_set()
    over.set()
