"""Traces are off unless OpenTelemetry's variables name a collector, and then have a span per request and command."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from shoal.core.errors import InputError
from shoal.live.decision_log import DecisionLog
from shoal.serve.request_pipeline import Endpoint
from shoal.serve.traces import Traces, traces_of

if TYPE_CHECKING:
    from tests.serve.conftest import Harness

TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def collector() -> Iterator[tuple[str, list[tuple[str, str | None, Any]]]]:
    got: list[tuple[str, str | None, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            got.append((self.path, self.headers["x-key"], body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", got
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_SERVICE_NAME": "x"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_without_the_variables_nothing_is_traced(environ: dict[str, str]) -> None:
    assert traces_of(environ) is None


@pytest.mark.parametrize("endpoint", ["c:4318", "ftp://c/", "http://", "http://[", "http://c:99999"])
def test_an_endpoint_that_is_no_address_is_named(endpoint: str) -> None:
    with pytest.raises(InputError, match="OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        traces_of({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": endpoint})


def test_a_request_a_decision_and_each_of_its_commands_are_spans(
    collector: tuple[str, list[tuple[str, str | None, Any]]],
) -> None:
    url, got = collector
    traces = traces_of({"OTEL_EXPORTER_OTLP_ENDPOINT": f"{url}/", "OTEL_EXPORTER_OTLP_HEADERS": "x-key=a%20b"})
    assert isinstance(traces, Traces)
    traces.request("GET", "/v1/jobs/{job}", 503, 0.25, f"00-{TRACE}-b7ad6b7169203331-01")
    log = DecisionLog(took=0.5, watch=traces.decision)
    log.note(3.0, [("start", "a-1", "ana"), ("stop", "b-2", "bo")])
    assert traces.flush()
    ((path, key, body),) = got
    assert (path, key) == ("/v1/traces", "a b")
    (resource,) = body["resourceSpans"]
    assert resource["resource"]["attributes"] == [{"key": "service.name", "value": {"stringValue": "shoal"}}]
    request, decision, *commands = resource["scopeSpans"][0]["spans"]
    assert (request["name"], request["traceId"], request["parentSpanId"]) == (
        "GET /v1/jobs/{job}", TRACE, "b7ad6b7169203331",
    )  # fmt: skip
    assert request["status"] == {"code": 2}
    assert {"key": "http.response.status_code", "value": {"intValue": "503"}} in request["attributes"]
    assert int(request["endTimeUnixNano"]) - int(request["startTimeUnixNano"]) == 250_000_000
    assert int(decision["endTimeUnixNano"]) - int(decision["startTimeUnixNano"]) == 500_000_000
    assert [(each["name"], each["parentSpanId"]) for each in commands] == [
        ("start", decision["spanId"]),
        ("stop", decision["spanId"]),
    ]
    assert {each["traceId"] for each in commands} == {decision["traceId"]}


def test_while_the_collector_does_not_answer_the_oldest_spans_are_dropped() -> None:
    traces = traces_of({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"})
    assert traces is not None
    for _ in range(5000):
        traces.request("GET", "/", 200, 0.0)
    assert not traces.flush()
    assert len(traces._spans) == 4096 - 512


def test_the_server_traces_requests_by_route_and_not_by_path(harness: "Harness") -> None:
    traces = traces_of({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"})
    assert traces is not None
    applications = (getattr(route, "app", None) for route in harness.app.routes)
    endpoint = next(each for each in applications if isinstance(each, Endpoint))
    endpoint.pipeline.context.traces = traces
    harness.call("GET", "/v1/jobs/hers-aaaa", "ana")
    assert [span["name"] for span in traces._spans] == ["GET /v1/jobs/{job}"]
