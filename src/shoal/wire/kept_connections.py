"""HTTP connections that stay open between requests, one for each calling thread."""

import http.client
import threading
from collections.abc import Callable, Mapping

MOST_BYTES = 256 * 2**20
"""Most bytes of an answer."""


class KeptConnections:
    """Sends requests over connections that ``connect`` makes, given a time-out in seconds."""

    def __init__(self, connect: Callable[[float], http.client.HTTPConnection]) -> None:
        self._connect, self._own = connect, threading.local()

    def exchange(
        self, method: str, target: str, data: bytes | None, headers: Mapping[str, str], seconds: float
    ) -> tuple[int, bytes]:
        """Return the status and the body of the answer; ``OSError`` or ``HTTPException`` if there is none.

        The server may have closed a kept connection: the request is then sent once more, over a new one.
        """
        kept: http.client.HTTPConnection | None = getattr(self._own, "connection", None)
        for connection in (kept, None):
            link = self._own.connection = connection or self._connect(seconds)
            try:
                if link.sock is not None:
                    link.sock.settimeout(seconds)
                link.request(method, target, body=data, headers=headers)
                response = link.getresponse()
                answer = response.read(MOST_BYTES)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if connection is None or isinstance(error, TimeoutError):
                    raise
            else:
                return response.status, answer
        raise AssertionError("a new connection either answers or raises")

    def close(self) -> None:
        """Close this thread's connection; its next request opens another."""
        kept: http.client.HTTPConnection | None = getattr(self._own, "connection", None)
        if kept is not None:
            kept.close()
            self._own.connection = None
