"""A control plane made of a few lines, and real agents that are told what to do by it."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from shoal.agent.processes import all_processes, descendants, environment
from shoal.wire.messages import (
    PROTOCOL,
    AgentOrders,
    AgentReport,
    Hello,
    LogAnswer,
    LogRead,
    ProblemDetails,
    RunOrder,
    RunReport,
)

DEADLINE_SECONDS = 60.0
"""How long anything may take on a busy machine before a test fails; no test passes by waiting for it."""

_Key = tuple[int, int]


def until(condition: Callable[[], Any], what: str) -> Any:
    """The first true value of a condition."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline, f"never came true: {what}"
        time.sleep(0.01)
    return value


def marked(mark: str) -> dict[int, dict[str, str]]:
    """The living processes that carry a mark, with their environment."""
    found = {p.pid: environment(p.pid) for p in all_processes() if p.state != "Z"}
    return {pid: environ for pid, environ in found.items() if environ.get("MARK") == mark}


def server_of(site: "Site", run: str = "1.1", node: str = "node-a") -> int:
    """The process that forked the keeper of a run."""
    record = site.home / "nodes" / node / "runs" / run / "keeper.json"
    return int(msgspec.json.decode(record.read_bytes())["pid"])


def keeper_of(site: "Site", run: str = "1.1", node: str = "node-a") -> int:
    """The keeper of a run, by a process below it whose environment names the run."""
    processes = all_processes()
    for process in [p for p in processes if p.parent == server_of(site, run, node)]:
        below = [environment(p.pid).get("SHOAL_PROGRESS", "") for p in descendants([process.pid], processes)]
        if any(f"/runs/{run}/" in path for path in below):
            return process.pid
    raise AssertionError(f"no keeper of {run}")


def token_file(folder: Path) -> Path:
    """A file with the agents' token."""
    path = folder / "agent.token"
    path.write_text("secret\n")
    return path


def order(phase: str, command: list[str], *, job: int = 1, incarnation: int = 1, **other: Any) -> RunOrder:
    usual: dict[str, Any] = {
        "id": f"job-{job}",
        "env": {},
        "workdir": None,
        "ranks": "gpu",
        "grace": 30.0,
        "gpus": 1,
        "shared_with": None,
        "node_rank": 0,
        "nodes": 1,
        "first_rank": 0,
        "local_ranks": 1,
        "world": 1,
        "master": "",
        "port": 0,
    }
    fields = {"job": job, "incarnation": incarnation, "phase": phase, "command": command, **usual, **other}
    return msgspec.convert(fields, RunOrder)


@dataclass
class Plane:
    """Says what it is told to say, and remembers what it hears."""

    lease: float = 60.0
    refusal: tuple[int, ProblemDetails] | None = None
    orders: dict[_Key, RunOrder] = field(default_factory=dict)
    reads: list[LogRead] = field(default_factory=list)
    hellos: list[Hello] = field(default_factory=list)
    reports: list[AgentReport] = field(default_factory=list)
    answers: dict[int, LogAnswer] = field(default_factory=dict)
    boots: set[str] = field(default_factory=set)
    generation: int = 0
    port: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)
    server: ThreadingHTTPServer | None = None

    def open(self) -> None:
        plane = self

        class Door(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.headers["Authorization"] == "Bearer secret"
                status, answer = plane.answer(self.path, body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                with suppress(OSError):
                    self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """An agent that was killed in the middle of a question is no error here."""

        self.server = Quiet(("127.0.0.1", self.port), Door)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        if self.server is not None:
            server, self.server = self.server, None
            with self.changed:
                self.changed.notify_all()
            server.shutdown()
            server.server_close()

    def answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        server = self.server
        with self.changed:
            if self.refusal is not None:
                return self.refusal[0], msgspec.json.encode(self.refusal[1])
            if path == "/v1/agent/hello":
                self.hellos.append(msgspec.json.decode(body, type=Hello))
                self.boots.add(self.hellos[-1].boot)
            else:
                assert path == "/v1/agent/sync"
                report = msgspec.json.decode(body, type=AgentReport)
                self.reports.append(report)
                self.answers.update({log.read: log for log in report.logs})
                self.reads = [read for read in self.reads if read.read not in self.answers]
                self.changed.wait_for(
                    lambda: (
                        self.generation > report.known
                        or self.reads
                        or self.server is not server
                        or report.boot not in self.boots
                    ),
                    report.wait,
                )
                if report.boot not in self.boots:
                    return 409, msgspec.json.encode(ProblemDetails("", "boot", report.boot, "unknown; say hello first"))
            if server is None or self.server is not server:
                return 503, msgspec.json.encode(ProblemDetails("the control plane is going away"))
            runs = list(self.orders.values())
            orders = AgentOrders(
                protocol=PROTOCOL, generation=self.generation, lease=self.lease, runs=runs, reads=self.reads
            )
            return 200, msgspec.json.encode(orders)

    def want(self, *runs: RunOrder) -> None:
        """From now on these are the orders."""
        with self.changed:
            self.orders = {(run.job, run.incarnation): run for run in runs}
            self.generation += 1
            self.changed.notify_all()

    def forget(self) -> None:
        """Be a control plane that has just started: it knows no agent and counts from the beginning."""
        with self.changed:
            self.boots.clear()
            self.generation = 0
            self.changed.notify_all()

    def read(self, read: LogRead) -> LogAnswer:
        with self.changed:
            self.reads = [*self.reads, read]
            self.changed.notify_all()
        answer: LogAnswer = until(lambda: self.answers.get(read.read), "a log read is answered")
        return answer

    def run(self, job: int = 1, incarnation: int = 1) -> RunReport | None:
        """What was last heard of a run."""
        runs = self.reports[-1].runs if self.reports else []
        return next((run for run in runs if (run.job, run.incarnation) == (job, incarnation)), None)

    def until(self, phase: str, job: int = 1, incarnation: int = 1) -> RunReport:
        """What is heard of a run once it is in this phase."""

        def there() -> RunReport | None:
            run = self.run(job, incarnation)
            return run if run and run.phase == phase else None

        report: RunReport = until(there, f"job {job}.{incarnation} is {phase}")
        return report


@dataclass
class Site:
    """A control plane, a home, and the agents that were started there."""

    plane: Plane
    home: Path
    mark: str
    agents: list[subprocess.Popen[str]] = field(default_factory=list)

    def agent(self, *options: str, gpus: int = 2, node: str = "node-a", through: str = "") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "shoal.agent", "--server", f"http://127.0.0.1:{self.plane.port}"]
        command += ["--node", node, "--kind", "v100", "--gpus", str(gpus), "--home", str(self.home), *options]
        environ = {**os.environ, "AWS_SECRET": "operator's"}
        command += ["--token-file", str(token_file(self.home.parent))]
        agent = subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True)
        self.agents.append(agent)
        return agent

    def alive(self) -> dict[int, dict[str, str]]:
        return marked(self.mark)

    def gone(self) -> None:
        until(lambda: not self.alive(), "no process of the job is left")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(Plane(), tmp_path / "home", uuid4().hex)
    site.plane.open()
    yield site
    for agent in site.agents:
        if agent.poll() is None:
            agent.kill()
        assert agent.stderr is not None
        agent.stderr.close()
        agent.wait()
    site.plane.close()
    for pid in site.alive():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
