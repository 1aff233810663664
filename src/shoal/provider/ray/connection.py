"""A connection to Ray: the program `bridge`, run by the Python that has Ray, and one request at a time."""

import json
import logging
import os
import select
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from shoal.provider.protocol import EngineAway, EngineRefusal

log = logging.getLogger("shoal.provider.ray")

BRIDGE = Path(__file__).with_name("bridge.py")

CONNECT_SECONDS = 60.0
"""Seconds after which a bridge that has not connected is ended, and another is started."""

_PATIENCE_SECONDS = 2.0
"""Seconds for which one request waits for a bridge that connects."""


class Connection(Protocol):
    """The requests that the provider makes of Ray; see the verbs in `bridge`."""

    def call(self, verb: str, seconds: float, **arguments: object) -> Any:
        """Return the bridge's answer; ``EngineAway`` without one in time, ``EngineRefusal`` with Ray's reason."""
        ...

    def close(self) -> None:
        """End the connection; the next call makes another."""
        ...


def bridge_environment(address: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a bridge: no variable of Shoal's, and no usage statistics.

    Ray replaces a loopback address by the machine's own, unless a variable declares a cluster of one machine: that is
    set here.
    """
    kept = {name: value for name, value in environ.items() if not name.startswith("SHOAL_")}
    local = address.startswith(("127.", "localhost"))
    return {**kept, "RAY_USAGE_STATS_ENABLED": "0"} | ({"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"} if local else {})


@dataclass(slots=True)
class BridgeConnection:
    """Runs ``words`` (an interpreter, `bridge` and its arguments), anew when it ended or did not answer.

    Its stderr, on which Ray writes, goes to ``log_file``. Safe to use from several threads.
    """

    words: Sequence[str]
    environment: Mapping[str, str]
    log_file: Path
    _process: "subprocess.Popen[bytes] | None" = None
    _started: float = 0.0
    _connected: bool = False
    _read: bytes = b""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def call(self, verb: str, seconds: float, **arguments: object) -> Any:
        """Send a request and return its answer; a bridge that does not answer within ``seconds`` is ended."""
        with self._lock:
            self._connect(_PATIENCE_SECONDS)
            try:
                self._send({"do": verb, **arguments})
                answer = self._line(seconds)
            except TimeoutError:
                self._end()
                raise EngineAway(f"Ray did not answer within {seconds:.0f} s") from None
        if "refused" in answer:
            raise EngineRefusal(answer["refused"])
        return answer["answer"]

    def connect(self, seconds: float) -> None:
        """Wait until the bridge has connected; ``EngineAway`` if it has not in this time."""
        with self._lock:
            self._connect(seconds)

    def close(self) -> None:
        """End the bridge."""
        with self._lock:
            self._end()

    def _connect(self, seconds: float) -> None:
        if self._process is None:
            try:
                with self.log_file.open("wb") as out:
                    self._process = subprocess.Popen(
                        self.words,
                        env=dict(self.environment),
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=out,
                        start_new_session=True,
                    )
            except OSError as error:
                raise EngineAway(f"{self.words[0]} cannot be run: {error.strerror}") from None
            self._started, self._connected, self._read = time.monotonic(), False, b""
        if self._connected:
            return
        try:
            first = self._line(seconds)
        except TimeoutError:
            if time.monotonic() > self._started + CONNECT_SECONDS:
                self._end()
            raise EngineAway("Ray has not answered yet") from None
        if "refused" in first:
            self._end()
            raise EngineAway(first["refused"])
        self._connected = True

    def _send(self, request: Mapping[str, object]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # then there is no answer either
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def _line(self, seconds: float) -> dict[str, Any]:
        """Return the next line; ``TimeoutError`` if there is none in time, ``EngineAway`` if the bridge has ended."""
        assert self._process is not None
        assert self._process.stdout is not None
        ends, source = time.monotonic() + seconds, self._process.stdout.fileno()
        while b"\n" not in self._read:
            if not select.select([source], [], [], max(0.0, ends - time.monotonic()))[0]:
                raise TimeoutError
            part = os.read(source, 1 << 20)
            if not part:
                self._end()
                raise EngineAway(f"the connection to Ray ended; see {self.log_file}")
            self._read += part
        line, _, self._read = self._read.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                with suppress(OSError):
                    pipe.close()
            self._process = None
