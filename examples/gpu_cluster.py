"""A cluster of ``shoal up`` on this machine, used as a person would: through the command line, with time-outs."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from shoal.agent.cuda_checkpoint import CudaCheckpoints, CudaRefused
from shoal.agent.processes import Process, all_processes, environment
from shoal.agent.run_process import die_with_parent
from shoal.agent.suspension import available_memory
from shoal.core.events import EventBatch
from shoal.store.journal import JournalFile

HERE = Path(__file__).resolve().parent
_CALL_SECONDS = 30.0


def gpu_used() -> int | None:
    """Bytes in use on the first GPU, as NVML reports them; None without a GPU."""
    try:
        return int(CudaCheckpoints((0,))._memory()[0].used)
    except (CudaRefused, AttributeError, OSError):
        return None


class Cluster:
    """A running ``shoal up`` with one GPU, and the record of everything that it did."""

    def __init__(self, folder: Path, policy: str, *, tiny: bool) -> None:
        self.folder, self.home = folder, folder / "home"
        self.samples: list[tuple[float, int | None, int]] = []
        """Time, bytes in use on the GPU, bytes of host memory available; twice a second."""
        self.calls: list[dict[str, Any]] = []
        self._env = {**os.environ, "SHOAL_HOME": str(self.home)}
        self._out = (folder / "up.txt").open("wb")
        command = [sys.executable, "-m", "shoal", "up", "--home", str(self.home), "--port", "0", "--policy", policy]
        self.began = time.time()
        self.process = subprocess.Popen(
            [*command, *(["--nodes", "1x1"] if tiny else [])],
            stdout=self._out,
            stderr=subprocess.STDOUT,
            env=self._env,
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(signal.SIGTERM),  # noqa: PLW1509 (no thread has been started yet)
        )
        self._closed = threading.Event()
        threading.Thread(target=self._sample, daemon=True).start()

    def _sample(self) -> None:
        while not self._closed.wait(0.5):
            self.samples.append((time.time(), gpu_used(), available_memory()))

    def wait_until_ready(self) -> None:
        """Wait until the command has printed that the cluster is ready."""
        self.until(lambda: b"is ready" in (self.folder / "up.txt").read_bytes(), 60.0, "shoal up is ready")

    def call(self, *words: str) -> str:
        """Run a command of Shoal; its output, or its error, which is also recorded."""
        began = time.time()
        try:
            done = subprocess.run(
                [sys.executable, "-m", "shoal", *words],
                env=self._env,
                cwd=self.folder,
                capture_output=True,
                text=True,
                timeout=_CALL_SECONDS,
                check=False,
            )
            code, out, error = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired:
            code, out, error = -1, "", "took too long"
        if code or words[0] not in ("queue", "job"):
            call = {"at": began, "words": words, "code": code, "out": out[-1500:], "error": error[-1500:]}
            self.calls.append(call)
        return out

    def submit(self, name: str, *command: str, options: tuple[str, ...] = ()) -> None:
        """Submit a command for one GPU; the name must be new."""
        env = ("--env", f"PYTHONPATH={os.environ.get('PYTHONPATH', '')}", "--env", "OMP_NUM_THREADS=1")
        self.call("submit", "--name", name, "--gpus", "1", *env, *options, "--", *command)

    def states(self) -> dict[str, str]:
        """By name of a job, its state."""
        with suppress(json.JSONDecodeError):
            rows = json.loads(self.call("queue", "--all", "--json"))
            return {row["name"]: row["state"] for row in (rows["jobs"] if isinstance(rows, dict) else rows)}
        return {}

    def watch(self, seconds: float, done: Callable[[dict[str, str]], bool]) -> list[tuple[float, dict[str, str]]]:
        """Poll the states until they are as wished or the time is over; every change with its time."""
        changes: list[tuple[float, dict[str, str]]] = []
        deadline = time.time() + seconds
        while time.time() < deadline:
            states = self.states()
            if not changes or changes[-1][1] != states:
                changes.append((time.time(), states))
                print(f"    {time.time() - self.began:5.1f} s: {states}", flush=True)
            if done(states) or self.process.poll() is not None:
                break
            time.sleep(0.4)
        return changes

    def until(self, condition: Callable[[], Any], seconds: float, what: str) -> Any:
        """Wait for something; RuntimeError if it does not come."""
        deadline = time.time() + seconds
        while time.time() < deadline:
            if found := condition():
                return found
            time.sleep(0.1)
        raise RuntimeError(f"not within {seconds:.0f} s: {what}")

    def agent(self) -> int | None:
        """The process number of the node's agent."""
        for process in all_processes():
            if process.parent == self.process.pid and process.state not in "ZX":
                return process.pid
        return None

    def ranks(self, job: str = "") -> list[Process]:
        """Live processes of this cluster's jobs, or of those with a name, by the folder in their environment."""
        jobs = f"{self.home}/jobs/{job}"
        return [
            process
            for process in all_processes()
            if process.state not in "ZX" and environment(process.pid).get("SHOAL_DIR", "").startswith(jobs)
        ]

    def close(self) -> dict[str, Any]:
        """Stop the cluster; what it left behind, its commands and its journal."""
        names = sorted(self.states())
        for name in names:
            self.call("why", name)
            self.call("job", name, "--json")
        self.call("nodes")
        self.call("nodes", "--json")
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(25)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        time.sleep(1.0)
        left = [process._asdict() for process in self.ranks()]
        for process in self.ranks():
            with suppress(OSError):
                os.kill(process.pid, signal.SIGKILL)
        self._closed.set()
        self._out.close()
        return {"left_after_shoal_up_ended": left, "events": self.events(), "calls": self.calls}

    def events(self) -> list[dict[str, Any]]:
        """The events of suspension and of the lives of jobs in the journal, with clock times."""
        found = []
        for record in JournalFile(self.home / "journal.sqlite").read():
            if isinstance(record, EventBatch):
                for event in record.events:
                    name = type(event).__name__
                    if name.startswith(("Job", "Suspension")) and name != "JobProgressed":
                        fields = {field: getattr(event, field, None) for field in type(event).__dataclass_fields__}
                        found.append({"event": name, **{k: v for k, v in fields.items() if _plain(v)}})
        return found

    def keep(self, target: Path) -> None:
        """Copy logs and the journal."""
        target.mkdir(parents=True, exist_ok=True)
        (target / "samples.json").write_text(json.dumps(self.samples))
        for path in [self.folder / "up.txt", *self.home.rglob("*.log"), *self.home.glob("journal.sqlite*")]:
            if path.is_file() and path.stat().st_size < 4_000_000:
                shutil.copy(path, target / "-".join(path.relative_to(self.folder).parts))


def _plain(value: object) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


@contextmanager
def cluster(name: str, policy: str, out: Path, *, tiny: bool) -> Iterator[tuple[Cluster, dict[str, Any]]]:
    """A cluster for the time of a block, and a dictionary for what was found, which is completed at its end."""
    found: dict[str, Any] = {"policy": policy}
    with tempfile.TemporaryDirectory(prefix=f"shoal-{name}-", ignore_cleanup_errors=True) as folder:
        made = Cluster(Path(folder).resolve(), policy, tiny=tiny)
        try:
            made.wait_until_ready()
            yield made, found
        except Exception as error:
            found["failed"] = f"{type(error).__name__}: {error}"
        finally:
            try:
                found |= made.close()
            finally:
                with suppress(OSError):
                    os.killpg(made.process.pid, signal.SIGKILL)
                made.keep(out / name)
