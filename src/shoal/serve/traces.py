"""Traces for OpenTelemetry: a span for each request, decision and command, sent as OTLP over HTTP in JSON.

Off unless the environment names an endpoint by OpenTelemetry's own variables. Spans wait in memory, at most 4,096 of
them; while the collector does not answer, the oldest are dropped.
"""

import json
import logging
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from shoal.core.errors import InputError
from shoal.core.units import Seconds
from shoal.live.decision_log import Move

log = logging.getLogger(__name__)

_MOST_SPANS = 4096
_MOST_AT_ONCE = 512
_EVERY_SECONDS = 5.0
_TIMEOUT_SECONDS = 10.0
_INTERNAL, _SERVER = 1, 2
"""Kinds of spans, as OTLP numbers them."""
_ERROR = 2
_PARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


@dataclass(slots=True)
class Traces:
    """Collects spans and sends them to ``endpoint``; every method may be called from any thread, and is quick."""

    endpoint: SplitResult
    headers: Mapping[str, str] = field(default_factory=dict)
    service: str = "shoal"
    _spans: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_MOST_SPANS))
    _stopped: threading.Event = field(default_factory=threading.Event)
    _failing: bool = False

    def start(self) -> None:
        """Begin to send what was collected, every few seconds."""
        threading.Thread(target=self._run, name="traces", daemon=True).start()

    def stop(self) -> None:
        """Send nothing more."""
        self._stopped.set()

    def request(self, method: str, route: str, status: int, seconds: Seconds, parent: str = "") -> None:
        """Add the span of a request that ended now; ``parent`` is the caller's header ``traceparent``."""
        found = _PARENT.fullmatch(parent)
        trace, above = found.groups() if found else (secrets.token_hex(16), "")
        about: dict[str, str | int] = {
            "http.request.method": method,
            "http.route": route,
            "http.response.status_code": status,
        }
        self._add(f"{method} {route}", _SERVER, trace, above, seconds, about, failed=status >= 500)

    def decision(self, number: int, seconds: Seconds, moves: Sequence[Move]) -> None:
        """Add the spans of a decision that ended now and of its commands."""
        trace = secrets.token_hex(16)
        above = self._add(
            "decision", _INTERNAL, trace, "", seconds, {"shoal.decision": number, "shoal.moves": len(moves)}
        )
        for verb, job, tenant in moves:
            self._add(verb, _INTERNAL, trace, above, 0.0, {"shoal.job": job, "shoal.tenant": tenant})

    def _add(
        self,
        name: str,
        kind: int,
        trace: str,
        parent: str,
        seconds: Seconds,
        about: Mapping[str, str | int],
        *,
        failed: bool = False,
    ) -> str:
        end, id = time.time_ns(), secrets.token_hex(8)
        values = {str: "stringValue", int: "intValue"}
        span = {
            "traceId": trace,
            "spanId": id,
            "parentSpanId": parent,
            "name": name,
            "kind": kind,
            "startTimeUnixNano": str(end - int(seconds * 1e9)),
            "endTimeUnixNano": str(end),
            "attributes": [{"key": key, "value": {values[type(value)]: str(value)}} for key, value in about.items()],
            "status": {"code": _ERROR} if failed else {},
        }
        self._spans.append(span)
        return id

    def _run(self) -> None:
        while not self._stopped.wait(_EVERY_SECONDS):
            while self._spans and self.flush():
                pass

    def flush(self) -> bool:
        """Send the oldest spans; return whether the collector took them. They are dropped if it refused them."""
        spans = [self._spans.popleft() for _ in range(min(len(self._spans), _MOST_AT_ONCE))]
        resource = {"attributes": [{"key": "service.name", "value": {"stringValue": self.service}}]}
        scope = {"scope": {"name": "shoal"}, "spans": spans}
        body = json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}).encode()
        try:
            status = self._post(body)
        except (OSError, HTTPException) as error:
            self._note_failure(str(error))
            return False
        if not 200 <= status < 300:
            self._note_failure(f"answered {status}")
            return False
        self._failing = False
        return True

    def _post(self, body: bytes) -> int:
        kind = HTTPSConnection if self.endpoint.scheme == "https" else HTTPConnection
        connection = kind(self.endpoint.hostname or "", self.endpoint.port, timeout=_TIMEOUT_SECONDS)
        try:
            path = self.endpoint.path or "/"
            connection.request("POST", path, body, {"Content-Type": "application/json", **self.headers})
            return connection.getresponse().status
        finally:
            connection.close()

    def _note_failure(self, error: str) -> None:
        if not self._failing:
            log.warning("the collector of traces does not take spans", extra={"error": error})
        self._failing = True


def traces_of(environ: Mapping[str, str]) -> Traces | None:
    """Return the traces that the environment asks for; None if it names no endpoint or switches them off."""
    own, base = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", ""), environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    exporter = environ.get("OTEL_TRACES_EXPORTER", "otlp")
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or exporter != "otlp" or not (own or base):
        return None
    name = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" if own else "OTEL_EXPORTER_OTLP_ENDPOINT"
    text = own or f"{base.rstrip('/')}/v1/traces"
    try:
        endpoint = urlsplit(text)
        valid = endpoint.scheme in ("http", "https") and bool(endpoint.hostname) and endpoint.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise InputError(name, own or base, "must be the http or https address of an OTLP collector")
    listed = environ.get("OTEL_EXPORTER_OTLP_TRACES_HEADERS") or environ.get("OTEL_EXPORTER_OTLP_HEADERS", "")
    pairs = (pair.partition("=") for pair in listed.split(",") if "=" in pair)
    headers = {key.strip(): unquote(value.strip()) for key, _, value in pairs}
    return Traces(endpoint, headers, environ.get("OTEL_SERVICE_NAME") or "shoal")
