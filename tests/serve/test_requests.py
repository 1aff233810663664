"""What comes in is bounded and typed, and what is wrong with it is said: field, value and way out."""

import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import pytest

from shoal.serve import ServerLimits
from shoal.wire.logs import JsonLine

if TYPE_CHECKING:
    from tests.serve.conftest import Harness, NewHarness

JSON = {"Content-Type": "application/json"}
HELLO = {"protocol": 1, "node": "n0", "boot": "b", "kind": "v100", "gpus": 4, "address": "127.0.0.1"}


@pytest.mark.parametrize(
    ("body", "status", "field", "value"),
    [
        (b"", 400, "body", None),
        (b"{", 400, "body", None),
        (b'{"command": ["\xff"]}', 400, "body", None),
        (b'{"command": ["a"], "work": NaN}', 400, "body", None),
        (b"[]", 422, "body", "[]"),
        (b"{}", 422, "command", None),
        (b'{"command": []}', 422, "command", "[]"),
        (b'{"command": ["a", 7]}', 422, "command[1]", 7),
        (b'{"command": ["a"], "gpuss": 2}', 422, "gpuss", 2),
        (b'{"command": ["a"], "gpus": "two"}', 422, "gpus", "two"),
        (b'{"command": ["a"], "gpus": 0}', 422, "gpus", 0),
        (b'{"command": ["a"], "gpus": 1000000000000000000000000000000}', 422, "gpus", str(10**30)),
        (b'{"command": ["a"], "gpus": 9}', 422, "gpus", 9),
        (b'{"command": ["a"], "work": 1e308}', 422, "work", "1e+308"),
        (b'{"command": ["a"], "deadline": 1e11}', 422, "deadline", 1e11),
        (b'{"command": ["a"], "weight": 1e-9}', 422, "weight", 1e-9),
        (b'{"command": ["a"], "batch_size": 1000000000}', 422, "batch_size", 10**9),
        (
            b'{"command": ["a"], "app": "a", "ahead": [{"jobs": 1, "gpus": 1, "work": 1e308}]}',
            422,
            "ahead[0].work",
            "1e+308",
        ),
        (b'{"command": ["a"], "name": "../up"}', 422, "name", "../up"),
        (b'{"command": ["a"], "name": "line\\n"}', 422, "name", "line\n"),
        (b'{"command": ["a\\u0000"]}', 422, "command[0]", "a\x00"),
        (b'{"command": ["a"], "env": {"A=B": "c"}}', 422, "env", "A=B"),
        (b'{"command": ["a"], "key": "' + b"k" * 600 + b'"}', 422, "key", "k" * 500 + "…"),
    ],
)
def test_a_bad_submission_is_refused_by_field_and_value(
    harness: "Harness", body: bytes, status: int, field: str, value: Any
) -> None:
    before = dict(harness.control_plane.owners)
    response = harness.call("POST", "/v1/jobs", "ana", content=body, headers=JSON)
    problem = response.json()
    assert (response.status_code, problem["field"], problem["value"]) == (status, field, value)
    assert problem["hint"]
    assert harness.control_plane.owners == before


def test_the_field_of_a_batch_says_which_job(harness: "Harness") -> None:
    jobs = [{"command": ["a"]}, {"command": ["a"], "gpus": -1}]
    problem = harness.call("POST", "/v1/jobs/batch", "ana", json={"jobs": jobs}).json()
    assert (problem["field"], problem["value"]) == ("jobs[1].gpus", -1)


@pytest.mark.parametrize("path", ["/v1/agent/hello", "/v1/jobs", "/v1/whatif"])
@pytest.mark.parametrize("deep", [b"[" * 100_000, b'{"a":' * 100_000, b"[" * 100_000 + b"]" * 100_000])
def test_deep_nesting_is_refused_and_breaks_nothing(harness: "Harness", path: str, deep: bytes) -> None:
    who = "agent" if "agent" in path else "ana"
    for body in (deep, json.dumps(HELLO).encode()[:-1] + b', "more": ' + deep + b"}"):
        response = harness.call("POST", path, who, content=body, headers=JSON)
        assert response.status_code in (400, 422)


@pytest.mark.parametrize("address", ["a b", "a\x00", "a\nLD_PRELOAD=b", "$(id)", "a/../b", "\x1b[2J", "ä"])
def test_an_agents_address_is_a_host_name_or_an_ip_address(harness: "Harness", address: str) -> None:
    for fine in ("10.0.0.7", "fe80::1%eth0", "node-3.rack_1.example", ""):
        assert harness.call("POST", "/v1/agent/hello", "agent", json={**HELLO, "address": fine}).status_code == 200
    problem = harness.call("POST", "/v1/agent/hello", "agent", json={**HELLO, "address": address}).json()
    assert (problem["field"], problem["hint"]) == ("address", "must be a host name or an IP address")


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonp"])
def test_only_json_is_taken(harness: "Harness", kind: str | None) -> None:
    headers = {"Content-Type": kind} if kind else {}
    response = harness.call("POST", "/v1/jobs", "ana", content=b'{"command": ["a"]}', headers=headers)
    assert (response.status_code, response.json()["field"]) == (415, "Content-Type")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("rank=x", "rank"),
        ("rank=-1", "rank"),
        ("rank=1&rank=2", "rank"),
        ("most=0", "most"),
        ("most=99999999", "most"),
        ("offset=1e99", "offset"),
        ("lines=3", "lines"),
    ],
)
def test_a_query_parameter_that_is_unknown_or_of_the_wrong_form_is_refused(
    harness: "Harness", query: str, field: str
) -> None:
    response = harness.call("GET", f"/v1/jobs/hers-aaaa/log?{query}", "ana")
    assert (response.status_code, response.json()["field"]) == (422, field)


def test_a_piece_of_a_log_is_given_as_asked_for(harness: "Harness") -> None:
    part = harness.call("GET", "/v1/jobs/hers-aaaa/log?incarnation=3&rank=2&offset=4&most=2", "ana").json()
    assert part == {
        "job": "hers-aaaa", "incarnation": 3, "rank": 2, "offset": 4, "size": 14, "text": "so", "live": True, "next": 6,
        "ranks": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    "job",
    [
        "..",
        "..%2ftokens",
        "%2e%2e%2f",
        "%2e%2e%2fhers-aaaa",
        "%00",
        "a%00b",
        "a%0a",
        "-a",
        "%ff",
        "a" * 5000,
        "a%2f..%2fb",
    ],
)
@pytest.mark.parametrize("suffix", ["", "/log"])
def test_no_path_escapes_and_what_cannot_be_a_job_never_reaches_the_cluster(
    harness: "Harness", job: str, suffix: str
) -> None:
    response = harness.call("GET", f"http://shoal/v1/jobs/{job}{suffix}", "ana")
    assert response.status_code in (404, 405)
    assert response.json()["error"]
    assert len(response.content) < 2000
    assert harness.control_plane.asked == []


@pytest.mark.parametrize(("path", "most"), [("/v1/jobs", 1000), ("/v1/jobs/batch", 2000)])
@pytest.mark.parametrize("declared", [True, False])
def test_a_body_too_large_is_refused_before_it_is_read_whole(
    new_harness: "NewHarness", chunked: Callable[..., AsyncIterator[bytes]], path: str, most: int, declared: bool
) -> None:
    harness = new_harness(ServerLimits(body_bytes=1000, large_body_bytes=2000))
    pulled = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal pulled
        async for part in chunked(*[b" " * 500] * 100):
            pulled += len(part)
            yield part

    headers = {**JSON, "Content-Length": "50000"} if declared else JSON
    response = harness.call("POST", path, "ana", content=endless(), headers=headers)
    assert (response.status_code, response.json()["field"]) == (413, "body")
    assert pulled <= (500 if declared else most + 500)


def test_a_body_of_just_the_allowed_size_is_taken(new_harness: "NewHarness") -> None:
    harness = new_harness(ServerLimits(body_bytes=1000))
    body = b'{"command": ["a"]}'.ljust(1000)
    assert harness.call("POST", "/v1/jobs", "ana", content=body, headers=JSON).status_code == 201
    assert harness.call("POST", "/v1/jobs", "ana", content=body + b" ", headers=JSON).status_code == 413


def test_without_a_token_no_byte_of_a_body_is_read(harness: "Harness") -> None:
    read: list[bytes] = []

    async def watched() -> AsyncIterator[bytes]:
        read.append(b"{}")
        yield b"{}"

    assert harness.call("POST", "/v1/jobs", None, content=watched(), headers=JSON).status_code == 401
    assert read == []


def test_an_unknown_path_is_404_and_an_unknown_method_says_which_there_are(harness: "Harness") -> None:
    for path in ("/", "/v1", "/v1/jobs/", "/v1/nothing", "/v2/jobs"):
        assert harness.call("GET", path).status_code == 404
    response = harness.call("PUT", "/v1/jobs/hers-aaaa")
    assert (response.status_code, response.headers["Allow"]) == (405, "DELETE, GET, PATCH")


def test_a_dead_loop_refuses_every_write_and_still_answers_reads(harness: "Harness") -> None:
    harness.control_plane.failed = "policy broke"
    report = {"protocol": 1, "node": "n0", "boot": "b", "known": 0, "runs": []}
    writes: list[tuple[str, str, str, Any]] = [
        ("POST", "/v1/jobs", "ana", {"command": ["a"]}),
        ("DELETE", "/v1/jobs/hers-aaaa", "ana", None),
        ("PATCH", "/v1/jobs/hers-aaaa", "ana", {"gpus": 1}),
        ("POST", "/v1/agent/hello", "agent", HELLO),
        ("POST", "/v1/agent/sync", "agent", report),
        ("GET", "/v1/healthz", "ana", None),
    ]
    for method, path, who, body in writes:
        response = harness.call(method, path, who, json=body)
        assert (response.status_code, "policy broke" in response.json()["error"]) == (503, True)
    assert harness.call("GET", "/v1/jobs", "ana").status_code == 200


def test_promises_that_do_not_come_true_are_not_waited_for_for_ever(new_harness: "NewHarness") -> None:
    harness = new_harness(ServerLimits(log_seconds=0.01, durable_seconds=0.01))
    harness.control_plane.stuck = True
    assert harness.call("POST", "/v1/jobs", "ana", json={"command": ["a"]}).status_code == 503
    late = harness.call("GET", "/v1/jobs/hers-aaaa/log", "ana")
    assert (late.status_code, late.json()["field"]) == (409, "job")


def test_an_unexpected_error_is_logged_and_its_text_is_not_sent_to_the_caller(
    harness: "Harness", monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("a secret of the inside")

    monkeypatch.setattr(harness.control_plane, "job", broken)
    response = harness.call("GET", "/v1/jobs/hers-aaaa", "ana")
    assert response.status_code == 500
    assert "secret" not in response.text
    assert "a secret of the inside" in caplog.text


def test_every_answer_forbids_storing_and_sniffing_and_none_invites_other_origins(harness: "Harness") -> None:
    for path, who in [("/v1/jobs", "ana"), ("/v1/jobs", None), ("/nowhere", None), ("/v1/metrics", "admin")]:
        headers = harness.call("GET", path, who, headers={"Origin": "http://evil"}).headers
        assert (headers["Cache-Control"], headers["X-Content-Type-Options"]) == ("no-store", "nosniff")
        assert not [name for name in headers if name.startswith("access-control")]


def test_each_request_is_logged_as_one_json_line_without_its_token(
    harness: "Harness", caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "shoal.http")
    harness.call("GET", "/v1/jobs/hers-aaaa", "ana")
    harness.call("GET", "/v1/jobs/hers-aaaa", None, headers={"Authorization": "Bearer shoal_wrong"})
    lines = [json.loads(JsonLine().format(record)) for record in caplog.records if record.name == "shoal.http"]
    assert all((line.pop("logger"), line.pop("event"), line.pop("level")) for line in lines)
    assert all(line.pop("at").endswith("Z") for line in lines)
    assert [line.pop("ms") >= 0 for line in lines] == [True, True]
    route = {"method": "GET", "route": "/v1/jobs/{job}"}
    assert lines == [{**route, "status": 200, "token": "ana"}, {**route, "status": 401, "token": None}]
    assert harness.secrets["ana"] not in caplog.text
    assert "shoal_wrong" not in caplog.text
