"""A client whose token is refused asks for another, once."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from shoal.wire.client import Client, Refused


class Guarded(BaseHTTPRequestHandler):
    """Answers the holder of the token ``new``."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        known = self.headers["Authorization"] == "Bearer new"
        body = b"7" if known else b'{"error": "no valid token"}'
        self.send_response(200 if known else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Guarded) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_token_that_a_restart_replaced_is_asked_for_again(url: str) -> None:
    secrets = iter(["old", "new"])
    client = Client(url, lambda: next(secrets))
    assert [client.get("/", int) for _ in range(2)] == [7, 7]
    client.close()
    secrets = iter(["old", "new"])
    streamed = Client(url, lambda: next(secrets))
    assert list(streamed.lines("/")) == ["7"]
    streamed.close()


def test_a_refusal_that_another_token_does_not_change_is_final(url: str) -> None:
    secrets = iter(["old", "older", "oldest"])
    for token in ("old", lambda: next(secrets)):
        client = Client(url, token)
        with pytest.raises(Refused, match="no valid token"):
            client.get("/", int)
        client.close()
    assert next(secrets) == "oldest"
