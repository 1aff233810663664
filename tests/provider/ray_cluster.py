"""A real Ray on this machine: a head without GPUs and nodes with fake ones, each with a loopback address of its own.

``make engines`` installs Ray from PyPI below ``.engines/ray``, in an environment of its own. Each cluster has a folder
and ports of its own, and all its processes end with it.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / ".engines" / "ray"
"""Where `make engines` installs Ray."""

PYTHON = ROOT / "bin" / "python"

PATIENCE_SECONDS = 60.0

_STORE_BYTES = 80_000_000


def wait_for(true: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
    """Poll until ``true()`` holds."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.1)


@dataclass(slots=True)
class RayCluster:
    """The processes of one Ray cluster, with ``gpus`` GPUs of kind ``kind`` on each node but the head."""

    run: Path
    nodes: Sequence[str]
    kind: str = "V100"
    gpus: int = 2
    port: int = 0
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """Address of Ray's control store; not 127.0.0.1, for which Ray puts another."""
        return f"127.0.0.2:{self.port}"

    def start(self) -> None:
        """Start the head and then the nodes; return when all have joined."""
        self.run.mkdir(parents=True)
        self.start_node("head")
        self.wait_for_node("head")
        for node in self.nodes:  # two at once on one machine wait for each other in vain
            self.start_node(node)
            self.wait_for_node(node)

    def start_node(self, node: str) -> None:
        """Start the processes of a node."""
        if node == "head":
            self.port = _free_port()
            self._spawn("head", 2, "--head", f"--port={self.port}", "--num-gpus=0", "--include-dashboard=false")
            return
        kind = f'{{"accelerator_type:{self.kind}": 1}}'
        flags = (f"--address={self.address}", f"--num-gpus={self.gpus}", f"--resources={kind}", "--labels=pool=gpu")
        self._spawn(node, 3 + self.nodes.index(node), *flags)

    def _spawn(self, name: str, last: int, *flags: str) -> None:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "SHOAL_", "CUDA_"))}
        common = (
            f"--node-name={name}",
            f"--node-ip-address=127.0.0.{last}",
            "--num-cpus=1",
            "--disable-usage-stats",
            "--block",
        )
        with (self.run / f"{name}.out").open("wb") as out:
            self.processes[name] = subprocess.Popen(
                [
                    str(PYTHON),
                    "-m",
                    "ray.scripts.scripts",
                    "start",
                    *common,
                    f"--object-store-memory={_STORE_BYTES}",
                    *flags,
                ],
                env={**kept, "RAY_TMPDIR": str(self.run), "RAY_USAGE_STATS_ENABLED": "0"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def wait_for_node(self, name: str) -> None:
        """Wait until ``ray start`` has started a node; try twice more if it gave up: on a busy machine, it does."""
        out, tries = self.run / f"{name}.out", 1

        def started() -> bool:
            nonlocal tries
            if self.processes[name].poll() is not None:
                assert tries < 3, f"{name}: {out.read_text()[-2000:]}"
                tries += 1
                end_session(self.processes[name].pid)
                self.start_node(name)
            return "Ray runtime started" in out.read_text()

        wait_for(started, 3 * PATIENCE_SECONDS)

    def members(self, name: str) -> list[int]:
        """Return the processes of a node: those of the session that its ``ray start`` leads."""
        return [
            pid
            for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
            if _session(pid) == self.processes[name].pid
        ]

    def signal(self, name: str, program: str, number: int) -> None:
        """Send a signal to the program of a node, such as ``raylet`` or ``gcs_server``."""
        for pid in self.members(name):
            with suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().strip() == program:
                    os.kill(pid, number)

    def kill_node(self, name: str) -> None:
        """Kill every process of a node that Ray started, agents apart: those have sessions of their own."""
        end_session(self.processes[name].pid)
        self.processes[name].wait(PATIENCE_SECONDS)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Stop the control store for the length of the ``with`` block."""
        self.signal("head", "gcs_server", signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal("head", "gcs_server", signal.SIGCONT)

    def stop(self) -> None:
        """End all processes and delete their folder."""
        for name in reversed(self.processes):
            self.kill_node(name)
        shutil.rmtree(self.run, ignore_errors=True)


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("", 0))
        return int(one.getsockname()[1])


def end_session(leader: int) -> None:
    """Kill the processes of a session."""
    for pid in session(leader):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def session(leader: int) -> list[int]:
    """Return the processes of the session that a process leads, or led."""
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _session(pid) == leader]


def require_ray() -> None:
    """Skip the test if Ray is not installed; fail in CI."""
    if not (ROOT / ".ready").exists():
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no Ray below .engines: `make engines` installs it")


@contextmanager
def ray_cluster(run: Path, nodes: Sequence[str] = ("n1", "n2")) -> Iterator[RayCluster]:
    """A real Ray inside the ``with`` block; without one installed the test is skipped, and fails in CI."""
    require_ray()
    cluster = RayCluster(run, nodes)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
