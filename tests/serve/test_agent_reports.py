"""Reports of agents that arrive whole: answered without the general path, and with the same answers."""

import json
import socket
import time
from typing import TYPE_CHECKING, Any, BinaryIO

import pytest

from shoal.serve.agent_reports import AgentReports, read_whole
from shoal.wire.messages import NewToken

if TYPE_CHECKING:
    from tests.serve.conftest import Harness, NewHarness, Serving

REPORT = {"protocol": 1, "node": "n0", "boot": "b", "known": 0, "runs": [], "wait": 0}


def request(secret: str, body: dict[str, Any] | bytes = REPORT, **more: str) -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps({**REPORT, **body}).encode()
    fields = {"Host": "127.0.0.1", "Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
    fields |= {"Content-Length": str(len(raw))} | {name.replace("_", "-"): value for name, value in more.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"POST /v1/agent/sync HTTP/1.1\r\n{head}\r\n".encode() + raw


def answer_to(port: int, *pieces: bytes) -> tuple[int, dict[str, str], Any]:
    """Send pieces of one request on a connection of its own; return status, fields and content of the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            link.sendall(piece)
            time.sleep(0.05 * (len(pieces) > 1))
        return read_answer(link.makefile("rb"))


def read_answer(stream: BinaryIO) -> tuple[int, dict[str, str], Any]:
    status = int(stream.readline().split()[1])
    fields: dict[str, str] = {}
    while line := stream.readline().strip().decode():
        name, _, value = line.partition(": ")
        fields[name.lower()] = value
    return status, fields, json.loads(stream.read(int(fields["content-length"])))


@pytest.mark.parametrize(
    ("who", "body", "more", "status"),
    [
        ("agent", {}, {}, 200),
        ("agent", {"runs": [{"job": 1, "incarnation": 1, "phase": "running"}]}, {"Accept": "application/json"}, 200),
        ("agent", {}, {"X-Other": "1"}, 200),
        ("agent-n1", {}, {}, 403),
        ("ana", {}, {}, 403),
        ("agent", {"node": "n7"}, {}, 403),
        ("agent-n7", {"node": "n7"}, {}, 422),
        ("agent", {"runs": 3}, {}, 422),
        ("agent", b"{", {}, 400),
        ("agent", {}, {"Content_Type": "text/plain"}, 415),
        ("agent", {}, {"Authorization": "Bearer wrong"}, 401),
        ("agent", {}, {"Host": "elsewhere.example"}, 421),
    ],
)
def test_a_report_gets_the_same_answer_whether_it_arrives_whole_or_in_pieces(
    who: str, body: Any, more: dict[str, str], status: int, new_harness: "NewHarness", serving: "Serving"
) -> None:
    harness = new_harness(hosts=frozenset({"localhost"}))
    if who == "agent-n7":  # a node that the control plane does not know
        harness.secrets[who] = harness.tokens.create(NewToken(who, "agent", None, "n7")).secret or ""
    port, sent = serving(harness.app).port, request(harness.secrets[who], body, **more)
    whole, pieces = answer_to(port, sent), answer_to(port, sent[:40], sent[40:])
    assert (whole[0], pieces[0]) == (status, status)
    assert whole[2] == pieces[2]
    usual = ("content-type", "cache-control", "x-content-type-options")
    assert [whole[1][name] for name in usual] == [pieces[1][name] for name in usual]


def test_only_a_whole_report_with_usual_fields_is_taken() -> None:
    sent = request("s")
    assert read_whole(sent) is not None
    for other in (
        sent[:-1],
        sent + b"x",
        sent.replace(b"Host: ", b"Host : "),
        sent.replace(b"Host:", b"Connection: close\r\nHost:"),
        sent.replace(b"Host:", b"Host: a\r\nHost:"),
        sent.replace(b"Host:", b" Host:"),
        sent.replace(b"127.0.0.1", b"a\nb: c"),
    ):
        assert read_whole(other) is None


def test_a_whole_report_does_not_take_the_general_path(
    harness: "Harness", serving: "Serving", monkeypatch: pytest.MonkeyPatch
) -> None:
    port = serving().port
    monkeypatch.setattr("shoal.serve.request_pipeline.RequestPipeline.answer", None)
    hello = json.dumps({"protocol": 1, "node": "n0", "boot": "b", "kind": "v100", "gpus": 4, "address": "h"}).encode()
    greeting = request(harness.secrets["agent"], hello).replace(b"agent/sync", b"agent/hello")
    assert [answer_to(port, each)[0] for each in (request(harness.secrets["agent"]), greeting)] == [200, 200]
    assert 'route="/v1/agent/sync",status="200"} 1.0' in harness.app.state.agent_reports.context.metrics.text().decode()


def test_a_waiting_report_is_answered_at_a_change_of_its_own_orders_and_forgotten_with_its_connection(
    harness: "Harness", serving: "Serving"
) -> None:
    port, reports = serving().port, harness.app.state.agent_reports
    assert isinstance(reports, AgentReports)
    waiting = reports.context.order_waits.waiting
    sent = request(harness.secrets["agent"], {"known": 1, "wait": 60})
    with socket.create_connection(("127.0.0.1", port), timeout=10) as link:
        stream = link.makefile("rb")
        link.sendall(sent)
        settled(lambda: "n0" in waiting)
        link.sendall(request(harness.secrets["agent"]))  # too early: it is answered after the first
        harness.control_plane.change("n1")
        time.sleep(0.05)
        assert "n0" in waiting
        harness.control_plane.change("n0")
        assert [read_answer(stream)[2]["generation"] for _ in range(2)] == [2, 2]
        link.sendall(request(harness.secrets["agent"], {"known": 2, "wait": 60}))
        settled(lambda: "n0" in waiting)
        stream.close()
    settled(lambda: not waiting)


def settled(condition: Any) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
