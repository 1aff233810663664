"""A real `shoal up` for tests in a browser: a process that can be killed and started again at the same address."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_START_SECONDS = 60.0


@dataclass(slots=True)
class LiveCluster:
    """A cluster of two virtual nodes with two GPUs each; its home is a folder of its own."""

    home: Path
    port: int = 0
    _process: "subprocess.Popen[bytes] | None" = None
    _environment: dict[str, str] = field(default_factory=dict)

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.home.mkdir(exist_ok=True)
        self._environment = {**os.environ, "SHOAL_HOME": str(self.home)}
        self.port = self.port or _free_port()
        command = [sys.executable, "-m", "shoal", "up", "--nodes", "2x2", "--home", str(self.home)]
        with open(self.home / "up.out", "wb") as out:
            self._process = subprocess.Popen(
                [*command, "--port", str(self.port)], stdout=out, stderr=out, env=self._environment, cwd=self.home
            )
        deadline = time.monotonic() + _START_SECONDS
        while "Shoal is ready" not in (self.home / "up.out").read_text():
            assert self._process.poll() is None, (self.home / "up.out").read_text()
            assert time.monotonic() < deadline, "it did not start"
            time.sleep(0.1)

    def stop(self, how: int = signal.SIGTERM) -> None:
        """End the control plane by a signal, and wait for its end."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None

    @property
    def pid(self) -> int:
        """Process of the control plane."""
        assert self._process is not None
        return self._process.pid

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://127.0.0.1:{self.port}/"

    def shoal(self, *args: str) -> str:
        """Return what a command printed."""
        command = [sys.executable, "-m", "shoal", *args]
        done = subprocess.run(
            command, env=self._environment, cwd=self.home, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def link(self) -> str:
        """Return a link that logs an admin's browser in, once."""
        return str(json.loads(self.shoal("web", "--json"))["url"])

    def call(self, method: str, path: str, token: str, body: Any = None) -> Any:
        """Call the API with a token."""
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path.lstrip("/"), data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            content = answer.read()
        return json.loads(content) if content else None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
