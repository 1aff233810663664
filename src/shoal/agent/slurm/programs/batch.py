"""The rank of a batch script's job: runs the script on the first node, and ``srun``'s tasks on the others.

Before the script starts, every other node has connected to the job's rendezvous port and sent the port of its task
server; that port is then free for the job. Each connection proves the run's secret. When the script ends, its
connection to each task server closes, and with it the server and its tasks end.
"""

import base64
import errno
import fcntl
import json
import os
import select
import signal
import socket
import sys
import time
import zlib
from contextlib import suppress
from typing import Any

from shoal.agent.slurm.programs.channel import Channel, call, listen, welcome
from shoal.agent.slurm.programs.srun import devices, input_file, task_streams
from shoal.agent.slurm.programs.tasks import Relay, become, expand, file_values, open_output, stopping, wake_by_signal

_GATHER_SECONDS = 120.0
"""Seconds that the first node waits for the others, and they for it."""
_MOST_CONNECTIONS = 256
_HELD = 99
"""Exit status of the process that held the script's connection: the script has ended."""
_REQUEUE_GRACE_SECONDS = 10.0
_STEP_POLL_SECONDS = 0.05
_MOST_SCRIPT_BYTES = 1 << 20


def say(text: str) -> None:
    """Write one line to the job's log."""
    sys.stderr.write(f"slurm: {text}\n")
    sys.stderr.flush()


# ── the first node ───────────────────────────────────────────────────────────────────────────────────────────────


class BatchScript:
    """The batch script and its output."""

    def __init__(self, job: dict[str, Any], argv: list[str]) -> None:
        self.job, self.argv = job, argv
        self.pid = 0
        self._files: list[int] = []
        self._pipes: dict[int, tuple[int, int | None]] = {}  # read end: (log, file)
        self._holds: list[Channel] = []
        self._requeued = 0.0

    def gather(self) -> dict[str, list[Any]]:
        """Wait until every other node has sent the port of its task server, and connect to each."""
        hosts = self.job["hosts"]
        if len(hosts) == 1:
            return {}
        secret, deadline = self.job["secret"], time.monotonic() + _GATHER_SECONDS
        peers: dict[str, list[Any]] = {}
        with listen(int(os.environ["MASTER_PORT"])) as server:
            while len(peers) < len(hosts) - 1:
                server.settimeout(max(0.1, deadline - time.monotonic()))
                missing = ", ".join(host for i, host in enumerate(hosts) if i and str(i) not in peers)
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    raise ConnectionError(f"no connection from the job's node at {missing}") from None
                with suppress(OSError, ValueError), connection:
                    channel = welcome(connection, secret)
                    said = channel.hear()
                    peers[str(int(said["node"]))] = [hosts[int(said["node"])], int(said["port"])]
                    channel.tell({})
                    channel.receive()  # it closes first, so that no connection keeps the port in use
        for host, port in peers.values():
            hold = call(host, port, secret, deadline)
            hold.tell({"hold": True})
            self._holds.append(hold)
        return peers

    def run(self) -> int:
        """Run the script to its end; return its status, negative for a signal."""
        options, env = self.job["options"], dict(os.environ)
        own, folder = self.job["own"], os.getcwd()
        steps = os.path.join(own, "steps")
        os.makedirs(steps, exist_ok=True)
        os.makedirs(env["SLURM_TMPDIR"], exist_ok=True)
        step = {name: self.job[name] for name in ("slots", "tasks", "devices", "secret")}
        env["SHOAL_STEP"] = json.dumps({**step, "peers": self.gather(), "folder": steps, "batch": os.getpid()})
        env["SLURM_TASK_PID"] = "0"
        argv = self._script(own)
        stdio = self._outputs(env, folder, options)
        wake = wake_by_signal()
        self.pid = os.fork()
        if self.pid == 0:
            env["SLURM_TASK_PID"] = str(os.getpid())
            become(argv, env, folder, (0, *stdio))
        for fd in {*stdio} - {1, 2}:
            os.close(fd)
        return self._follow(wake)

    def _script(self, own: str) -> list[str]:
        """Write the script as it was submitted to a file of the run; return the command that runs it."""
        at, text = self.job["options"].get("script", 0), self.job.get("script")
        if not at or text is None:
            return self.argv
        path = os.path.join(own, "slurm_script")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o700), "wb") as file:
            file.write(zlib.decompressobj().decompress(base64.b85decode(text), _MOST_SCRIPT_BYTES))
        return [*self.argv[:at], path, *self.argv[at + 1 :]]

    def _outputs(self, env: dict[str, str], folder: str, options: dict[str, Any]) -> tuple[int, int]:
        """Return where the script writes: the job's log, or pipes to the log and the files it names."""
        named = [options.get("output", ""), options.get("error", "")]
        if not any(named):
            return 1, 2
        values = file_values({**env, "SLURM_NODEID": "0", "SLURM_PROCID": "0"})
        append = bool(options.get("append")) or "SLURM_RESTART_COUNT" in env
        ends: list[int] = []
        for log, pattern in zip((1, 2), named, strict=True):
            if log == 2 and not pattern:  # as Slurm does: one file for both, in the order of writing
                ends.append(ends[0])
                continue
            file = None
            try:
                file = open_output(expand(pattern, values), folder, append=append) if pattern else None
            except OSError as error:
                say(f"cannot write {error.filename}: {error.strerror}; see `shoal logs {env.get('SHOAL_JOB', '')}`")
            end, write = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(end, False)
            self._pipes[end] = (log, file)
            ends.append(write)
        return ends[0], ends[1]

    def _follow(self, wake: int) -> int:
        poll = select.poll()
        for fd in (wake, *self._pipes):
            poll.register(fd, select.POLLIN)
        while True:
            timeout = None if not self._requeued else 1000 * max(0.0, self._requeued - time.monotonic())
            for fd, _ in poll.poll(timeout):
                if fd == wake:
                    self._signalled({*os.read(wake, 4096)})
                elif not self._copy(fd):
                    poll.unregister(fd)
                    del self._pipes[fd]
            if self._requeued and time.monotonic() >= self._requeued:
                with suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                if code == -signal.SIGTERM and stopping():
                    self._await_steps()
                self._copy_rest()
                return code

    def _await_steps(self) -> None:
        """Copy output while steps run whose script the stop has ended; the keeper kills them after their grace."""
        while self._steps():
            time.sleep(_STEP_POLL_SECONDS)
            self._copy_rest()

    def _copy_rest(self) -> None:
        for fd in self._pipes:
            while self._copy(fd):
                pass

    def _copy(self, fd: int) -> bool:
        """Copy new output of the script to the log and to its file; return False if there is none now."""
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return False
        log, file = self._pipes[fd]
        for target in (log, file):
            left = data
            while left and target is not None:
                try:
                    left = left[os.write(target, left) :]
                except OSError as error:
                    self._pipes[fd] = (log, None)
                    if target == file:
                        say(f"the output file cannot be written any more: {error.strerror}")
                    break
        return bool(data)

    def _signalled(self, numbers: set[int]) -> None:
        """Pass on the signal before the time limit; stop the script if it asked to be requeued."""
        if signal.SIGTERM in numbers and os.path.exists(os.path.join(self.job["own"], "requeue")):
            self._requeued = time.monotonic() + _REQUEUE_GRACE_SECONDS
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGTERM)
        elif stopping():
            return
        for number in numbers - {signal.SIGCONT, signal.SIGCHLD} - ({signal.SIGTERM} if self._requeued else set()):
            targets = [self.pid] if self.job["options"].get("signal_batch") else self._steps()
            for pid in targets:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    def _steps(self) -> list[int]:
        """Return the processes of ``srun`` that are running: each has locked its step's file."""
        found, folder = [], os.path.join(self.job["own"], "steps")
        for name in os.listdir(folder):
            with open(os.path.join(folder, name), "rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    text = file.read()
                    found += [int(text)] if text.isdigit() else []
        return found


# ── the other nodes ──────────────────────────────────────────────────────────────────────────────────────────────


class TaskServer:
    """Starts the tasks that ``srun`` on the first node orders for this node, until the batch script ends."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self._children: set[int] = set()

    def serve(self) -> int:
        """Serve until the script's connection ends."""
        os.makedirs(os.environ["SLURM_TMPDIR"], exist_ok=True)
        server = listen()
        deadline = time.monotonic() + _GATHER_SECONDS
        channel = call(self.job["hosts"][0], int(os.environ["MASTER_PORT"]), self.job["secret"], deadline)
        channel.tell({"node": self.job["node"], "port": server.getsockname()[1]})
        channel.hear()
        channel.socket.close()
        wake = wake_by_signal()
        poll = select.poll()
        poll.register(server, select.POLLIN)
        poll.register(wake, select.POLLIN)
        while True:
            held = os.path.exists(os.path.join(self.job["own"], "held"))
            if not held and time.monotonic() > deadline:
                raise ConnectionError("the job's first node did not start its batch script")
            for fd, _ in poll.poll(None if held else 1000.0):
                if fd == wake:
                    os.read(wake, 4096)
                else:
                    self._fork(server, server.accept()[0])
            while self._children:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                self._children.discard(pid)
                if os.waitstatus_to_exitcode(status) == _HELD:
                    return 0

    def _fork(self, server: socket.socket, connection: socket.socket) -> None:
        if len(self._children) >= _MOST_CONNECTIONS:
            connection.close()
            return
        pid = os.fork()
        if pid:
            self._children.add(pid)
            connection.close()
            return
        status = 1
        try:
            server.close()
            status = self._attend(connection)
        except (OSError, ValueError, KeyError) as error:
            say(f"a connection of the job failed: {error}")
        finally:
            os._exit(status)

    def _attend(self, connection: socket.socket) -> int:
        channel = welcome(connection, self.job["secret"])
        message = channel.hear()
        if "hold" in message:
            with open(os.path.join(self.job["own"], "held"), "wb"):
                pass
            channel.receive()
            return _HELD
        self._run(channel, message["step"])
        return 0

    def _run(self, channel: Channel, step: dict[str, Any]) -> None:
        own = dict(os.environ)
        path = f"{self.job['bin']}{os.pathsep}{step['env'].get('PATH', own.get('PATH', ''))}"
        here = {name: value for name, value in own.items() if name.startswith("SHOAL_") or name in _OWN}
        relay = Relay(
            lambda rank, stream, data: channel.send(stream, rank, data),
            lambda rank, status: channel.tell({"exit": [rank, status]}),
        )
        data = None if step["input"] is None else base64.b64decode(step["input"])
        for task in step["tasks"]:
            env = {**step["env"], **here, **task["env"], "PATH": path}
            env["CUDA_VISIBLE_DEVICES"] = devices(self.job["devices"], task["gpus"])
            streams = task_streams(task, step["folder"], [None, None], append=step["append"])
            relay.start({"rank": task["rank"], "env": env}, step["argv"], step["folder"], (input_file(data), *streams))
        relay.join(channel)

        def frame(fd: int, received: tuple[int, int, bytes] | None) -> None:
            if received is None:  # srun has died
                relay.signal(signal.SIGKILL)
                relay.leave(fd)
            else:
                relay.signal(int(json.loads(received[2])["signal"]))

        # A signal of this node's keeper has reached every task already.
        relay.follow_tasks(frame, lambda number: None)
        with suppress(OSError):
            channel.tell({"over": True})


_OWN = ("TMPDIR", "SLURM_TMPDIR", "CUDA_DEVICE_ORDER", "BASH_ENV")
"""Variables, besides Shoal's, that a task has from its own node rather than from ``srun``."""


def main(argv: list[str]) -> int:
    """Run the script or the task server; return its exit status, or end by the signal that ended the script."""
    code = _main(argv)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    return code


def _main(argv: list[str]) -> int:
    job = json.loads(os.environ.pop("SHOAL_BATCH_JOB"))
    job["script"] = os.environ.pop("SHOAL_SCRIPT", None)
    os.environ["SHOAL_STEP"] = json.dumps({"node": job["node"]})
    try:
        if job["node"]:
            return TaskServer(job).serve()
        return BatchScript(job, argv).run()
    except ConnectionError as error:
        say(f"error: {error}")
        return 1
    except OSError as error:
        say(f"error: {error}")
        return 1 if error.errno != errno.ENOENT else 127
