"""``srun`` inside a batch script: start the tasks of a step on the nodes of the job and follow them to their end.

Tasks on this node are its children; those on another node are started by that node's task server. The exit status is
the highest of the tasks', with 128 + N for one that signal N ended.
"""

import base64
import fcntl
import json
import os
import signal
import stat
import sys
import time
from contextlib import suppress
from typing import Any

from shoal.agent.slurm.programs.srun_options import StepOptions, fail, parse
from shoal.agent.slurm.programs.step_layout import Slot, plan, tasks_per_node
from shoal.agent.slurm.programs.tasks import CONTROL, STDERR, Relay, expand, file_values, open_output, stopping

_MOST_INPUT_BYTES = 16 << 20
_MOST_TASKS = 4096
_CONNECT_SECONDS = 60.0
_RETRY_SECONDS = 0.2


class Step:
    """One step: its tasks by node, and the highest exit status so far."""

    def __init__(self, options: StepOptions, job: dict[str, Any]) -> None:
        self.options, self.job = options, job
        self.slots = [Slot(*slot) for slot in job["slots"]]
        self.placed = plan(options, self.slots, job.get("tasks"), os.environ)
        self.total = sum(len(ranks) for _, ranks in self.placed)
        if self.total > _MOST_TASKS:
            fail(f"--ntasks: {self.total}: a step has at most {_MOST_TASKS:,} tasks")
        self.status = 0
        self._partial: dict[tuple[int, int], bytes] = {}
        self._hosts = {rank: self.slots[slot].host for slot, ranks in self.placed for rank in ranks}
        self._locks: list[int] = []
        self.relay = Relay(self._output, self._ended)
        self._step = self._number()

    def _number(self) -> str:
        """Return the step's number. Its file holds this process's number and is locked as long as it lives."""
        folder = self.job["folder"]
        number = len(os.listdir(folder))
        while True:
            try:
                file = os.open(f"{folder}/step.{number}", os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
                break
            except FileExistsError:
                number += 1
        fcntl.flock(file, fcntl.LOCK_EX)
        os.write(file, str(os.getpid()).encode())
        return str(number)

    # ── GPUs ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _take(self, slot: Slot, count: int) -> list[int]:
        """Lock and return this many GPUs of a node that no other step of the job has locked; wait for them."""
        warned = False
        while True:
            taken: dict[int, int] = {}
            for gpu in range(slot.first, slot.first + slot.gpus):
                name = f"{self.job['folder']}/../gpu.{slot.node}.{gpu}"
                file = os.open(name, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    taken[gpu] = file
                except BlockingIOError:
                    os.close(file)
                if len(taken) == count:
                    self._locks += taken.values()
                    return list(taken)
            for file in taken.values():
                os.close(file)
            if not warned:
                sys.stderr.write("srun: waiting: other steps of the job use its GPUs\n")
                warned = True
            time.sleep(_RETRY_SECONDS)

    def _gpus(self, slot: Slot, tasks: int) -> list[list[int]]:
        """Return the GPUs of each task on a node, as indices among the job's GPUs there."""
        options = self.options
        each = options.gpus("gpus-per-task") or int(os.environ.get("SLURM_GPUS_PER_TASK") or 0)
        total = options.gpus("gpus")
        wanted = each * tasks or options.gpus("gpus-per-node") or options.gpus("gres")
        if not wanted and total:
            wanted = -(-total // len(self.placed))
        if not wanted:
            return [list(range(slot.first, slot.first + slot.gpus))] * tasks
        if wanted > slot.gpus:
            fail(f"the step asks for {wanted} GPUs on {slot.host}, where the job has {slot.gpus}")
        shared = wanted == slot.gpus or "overlap" in options.given
        mine = [slot.first + i for i in range(wanted)] if shared else self._take(slot, wanted)
        return [mine[i * each : (i + 1) * each] if each else mine for i in range(tasks)]

    # ── starting ──────────────────────────────────────────────────────────────────────────────────────────────

    def _environment(self) -> dict[str, str]:
        """Return the variables that all tasks share."""
        entries = [entry for entry in self.options.given.get("export", "ALL").split(",") if entry]
        named = {entry.partition("=")[0] for entry in entries if entry not in ("ALL", "NONE", "NIL")}
        kept = ("SLURM_", "SHOAL_", "SLURMD_")
        env = {
            name: value
            for name, value in os.environ.items()
            if "ALL" in entries or name.startswith(kept) or name in named or name in ("PATH", "HOME", "USER", "TMPDIR")
        }
        env |= dict(entry.split("=", 1) for entry in entries if "=" in entry)
        hosts = [self.slots[slot].host for slot, _ in self.placed]
        counts = tasks_per_node([len(ranks) for _, ranks in self.placed])
        shared: dict[str, object] = {
            "NTASKS": self.total, "NPROCS": self.total, "STEP_NUM_TASKS": self.total, "NNODES": len(hosts),
            "STEP_NUM_NODES": len(hosts), "STEP_ID": self._step, "STEPID": self._step, "NODELIST": ",".join(hosts),
            "STEP_NODELIST": ",".join(hosts), "TASKS_PER_NODE": counts, "STEP_TASKS_PER_NODE": counts,
            "LAUNCH_NODE_IPADDR": self.slots[0].host,
        }  # fmt: skip
        if cpus := self.options.number("cpus-per-task"):
            shared["CPUS_PER_TASK"] = cpus
        return {**env, **{f"SLURM_{name}": str(value) for name, value in shared.items()}}

    def start(self) -> None:
        """Start all tasks; ``ConnectionError`` if a node cannot be reached."""
        shared, folder = self._environment(), os.path.join(os.getcwd(), self.options.given.get("chdir", ""))
        data = self._input()
        peers: dict[int, list[dict[str, Any]]] = {}
        for index, (number, ranks) in enumerate(self.placed):
            slot = self.slots[number]
            for local, (rank, gpus) in enumerate(zip(ranks, self._gpus(slot, len(ranks)), strict=True)):
                own: dict[str, object] = {
                    "SLURM_PROCID": rank, "SLURM_LOCALID": local, "SLURM_NODEID": index, "SLURMD_NODENAME": slot.host,
                    "SLURM_GPUS_ON_NODE": slot.gpus, "SLURM_GTIDS": ",".join(map(str, ranks)),
                }  # fmt: skip
                env = {name: str(value) for name, value in own.items()}
                task = {"rank": rank, "env": env, "gpus": gpus, **self._files({**shared, **env})}
                peers.setdefault(slot.node, []).append(task)
        for node, tasks in peers.items():
            if node == 0:
                self._start_here(tasks, shared, folder, data)
            else:
                self._start_there(node, {"tasks": tasks, "env": shared, "folder": folder}, data)

    def _files(self, env: dict[str, str]) -> dict[str, str]:
        """Return the output files of a task, where --output or --error name some."""
        found = {}
        for name in ("output", "error"):
            pattern = self.options.given.get(name, "")
            if pattern not in ("", "all"):
                found[name] = "/dev/null" if pattern == "none" else expand(pattern, file_values(env))
        return found

    def _start_here(self, tasks: list[dict[str, Any]], shared: dict[str, str], folder: str, data: bytes | None) -> None:
        label = "label" in self.options.given
        for task in tasks:
            env = {**shared, **task["env"], "CUDA_VISIBLE_DEVICES": devices(self.job["devices"], task["gpus"])}
            stdin = 0 if data is None and (self.total == 1 or "pty" in self.options.given) else input_file(data)
            streams = [None if label else 1, None if label else 2]
            streams = task_streams(task, folder, streams, append=self.options.given.get("open-mode") == "append")
            self.relay.start({"rank": task["rank"], "env": env}, self.options.command, folder, (stdin, *streams))

    def _start_there(self, node: int, spec: dict[str, Any], data: bytes | None) -> None:
        from shoal.agent.slurm.programs.channel import call  # of no use on a single node, where srun starts faster

        host, port = self.job["peers"][str(node)]
        channel = call(host, port, self.job["secret"], time.monotonic() + _CONNECT_SECONDS)
        append = self.options.given.get("open-mode") == "append"
        encoded = None if data is None else base64.b64encode(data).decode()
        channel.tell({"step": {**spec, "argv": self.options.command, "input": encoded, "append": append}})
        self.relay.join(channel)

    def _input(self) -> bytes | None:
        """Return the standard input of a step's tasks, as under Slurm; None if a single task reads it itself."""
        if self.options.given.get("input") == "none":
            return b""
        if path := self.options.given.get("input"):
            with open(path, "rb") as file:
                data = file.read(_MOST_INPUT_BYTES + 1)
        elif (self.total == 1 and self.slots[self.placed[0][0]].node == 0) or not _has_input():
            return None
        else:
            data = sys.stdin.buffer.read(_MOST_INPUT_BYTES + 1)
        if len(data) > _MOST_INPUT_BYTES:
            fail(f"standard input is longer than {_MOST_INPUT_BYTES:,} bytes, the most a step of several tasks can get")
        return data

    # ── following ─────────────────────────────────────────────────────────────────────────────────────────────

    def follow(self) -> int:
        """Follow the tasks to their end and return the exit status."""
        self.relay.follow(self._frame, self._signalled)
        for (rank, stream), rest in [*self._partial.items()]:
            if rest:
                self._output(rank, stream, b"\n")
        return self.status

    def _frame(self, fd: int, frame: tuple[int, int, bytes] | None) -> None:
        if frame is None:
            sys.stderr.write("srun: error: a node of the job closed its connection before its tasks ended\n")
            self.status = max(self.status, 1)
            self.relay.leave(fd)
        elif frame[0] != CONTROL:
            self._output(frame[1], frame[0], frame[2])
        else:
            message = json.loads(frame[2])
            if "exit" in message:
                self._ended(*message["exit"])
            if "over" in message:
                self.relay.leave(fd)

    def _output(self, rank: int, stream: int, data: bytes) -> None:
        if "label" not in self.options.given:
            _write(stream, data)
            return
        *lines, self._partial[rank, stream] = (self._partial.get((rank, stream), b"") + data).split(b"\n")
        width = len(str(self.total - 1))
        _write(stream, b"".join(b"%*d: %b\n" % (width, rank, line) for line in lines))

    def _ended(self, rank: int, status: int) -> None:
        if status == 0:
            return
        how = f"Exited with exit code {status}" if status > 0 else signal.strsignal(-status) or f"signal {-status}"
        sys.stderr.write(f"srun: error: {self._hosts[rank]}: task {rank}: {how}\n")
        self.status = max(self.status, status if status > 0 else 128 - status)
        if self.options.given.get("kill-on-bad-exit", "0") != "0":
            self._send(signal.SIGKILL)

    def _signalled(self, number: int) -> None:
        if number != signal.SIGTERM or not stopping():
            self._send(number)

    def _send(self, number: int) -> None:
        self.relay.signal(number)
        for channel in self.relay.channels.values():
            with suppress(OSError):
                channel.tell({"signal": number})


def devices(present: list[str], chosen: list[int]) -> str:
    """Return the value of CUDA_VISIBLE_DEVICES for these of the job's GPUs on a node."""
    return ",".join(present[i] for i in chosen if i < len(present))


def input_file(data: bytes | None) -> int:
    """Return an open file with these bytes for a task to read."""
    if not data:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    file = os.memfd_create("input")
    os.write(file, data)
    os.lseek(file, 0, os.SEEK_SET)
    return file


def task_streams(task: dict[str, Any], folder: str, streams: list[int | None], *, append: bool) -> list[int | None]:
    """Return the files for a task's output and errors where it names some, else ``streams``."""
    out, err = streams
    if "output" in task:
        out = open_output(task["output"], folder, append=append or task["rank"] > 0)
        err = err if "error" in task else out
    if "error" in task:
        err = open_output(task["error"], folder, append=append or task["rank"] > 0)
    return [out, err]


def _write(stream: int, data: bytes) -> None:
    fd = 2 if stream == STDERR else 1
    while data:
        data = data[os.write(fd, data) :]


def _has_input() -> bool:
    """Whether standard input is a file or a pipe."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or stat.S_ISFIFO(mode)


def main(words: list[str]) -> int:
    """Run a step; return its exit status."""
    text = os.environ.get("SHOAL_STEP")
    if text is None:
        fail("runs only inside a job that is a batch script; for one GPU of your own use `shoal submit`")
    job = json.loads(text)
    if "folder" not in job:
        fail("runs only on the job's first node, where its batch script runs")
    options = parse(words, os.environ.get("SLURM_JOB_ID", ""))
    if not options.command:
        fail("names no command to run")
    try:
        step = Step(options, job)
        step.start()
        return step.follow()
    except BrokenPipeError:
        os._exit(1)
    except (OSError, UnicodeError) as error:
        fail(str(error))
