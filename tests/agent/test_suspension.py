"""Suspension of a run: the order of the driver's calls and what each failure leaves, and real processes that stop."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.conftest import until
from tests.agent.fake_cuda import FakeCuda, build

from shoal.agent import cuda_checkpoint, keeper, processes, suspension
from shoal.agent.cuda_checkpoint import CudaCheckpoints, CudaLost, CudaRefused, why_not
from shoal.agent.processes import find_process

PLENTY = 1 << 40


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("cuda"))


@pytest.fixture
def fake(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    monkeypatch.setattr(cuda_checkpoint, "_END_SECONDS", 0.0)
    return FakeCuda(library, tmp_path, monkeypatch)


def checkpoints(fake: FakeCuda) -> CudaCheckpoints:
    return CudaCheckpoints((0,), fake.path, fake.path)


ME, PARENT = os.getpid(), os.getppid()


def test_a_run_without_a_gpu_stays_if_no_host_memory_is_left_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspension, "available_memory", lambda: 0)
    suspender = suspension.start_suspender({}, lambda pid: [], lambda process, number: None)
    try:
        (answer, *_) = suspender.read()
    finally:
        suspender.close()
        os.waitpid(suspender.pid, 0)
    assert answer["event"] == "refused"
    assert "bytes of host memory, and only 0 are left for a run in its place" in answer["cause"]


# ── the driver's calls ────────────────────────────────────────────────────────────────────────────────────────────


def test_processes_are_locked_and_checkpointed_one_after_the_other_and_come_back_in_that_order(fake: FakeCuda) -> None:
    cuda = checkpoints(fake)
    cuda.take_off([ME, PARENT], PLENTY)
    assert cuda.taken == [ME, PARENT]
    cuda.put_back()
    away = [f"{call} {pid} {ms}" for pid in (ME, PARENT) for call, ms in (("Lock", 10_000), ("Checkpoint", 0))]
    assert fake.calls == [*away, *(f"{call} {pid} 0" for pid in (ME, PARENT) for call in ("Restore", "Unlock"))]


def test_a_process_without_cuda_has_nothing_to_take_off(fake: FakeCuda) -> None:
    fake.returns("Lock=3")
    cuda = checkpoints(fake)
    cuda.take_off([ME], PLENTY)
    assert cuda.taken == []
    assert len(fake.calls) == 1


def test_a_driver_that_cannot_be_initialised_does_not_make_processes_look_idle(fake: FakeCuda) -> None:
    fake.returns("Init=100,Lock=3")
    with pytest.raises(CudaRefused, match="cuInit returned 100"):
        checkpoints(fake).take_off([ME], PLENTY)
    assert fake.calls == []


@pytest.mark.parametrize(
    ("codes", "undone"),
    [
        ("Lock#2=304", ["Restore {me}", "Unlock {me}"]),
        ("Lock#2=600", ["Restore {me}", "Unlock {me}"]),
        ("Checkpoint#2=2", ["Unlock {parent}", "Restore {me}", "Unlock {me}"]),
        ("Checkpoint#2=401", ["Unlock {parent}", "Restore {me}", "Unlock {me}"]),
    ],
)
def test_if_one_process_cannot_be_taken_off_the_others_are_put_back(
    fake: FakeCuda, codes: str, undone: list[str]
) -> None:
    fake.returns(codes)
    cuda = checkpoints(fake)
    with pytest.raises(CudaRefused, match=f"of process {PARENT} returned {codes.partition('=')[2]}"):
        cuda.take_off([ME, PARENT], PLENTY)
    assert cuda.taken == []
    assert [call.rpartition(" ")[0] for call in fake.calls][-len(undone) :] == [
        call.format(me=ME, parent=PARENT) for call in undone
    ]


@pytest.mark.parametrize("codes", ["Restore=2", "Restore=304", "Unlock=401"])
def test_a_process_that_cannot_be_put_back_is_lost(fake: FakeCuda, codes: str) -> None:
    fake.returns(codes)
    cuda = checkpoints(fake)
    cuda.take_off([ME], PLENTY)
    with pytest.raises(CudaLost, match=f"returned {codes.partition('=')[2]}"):
        cuda.put_back()


def test_a_process_that_has_ended_meanwhile_is_passed_over(fake: FakeCuda) -> None:
    fake.returns("Lock=304")
    ended = subprocess.Popen(["true"])
    ended.wait()
    checkpoints(fake).take_off([ended.pid], PLENTY)


@pytest.mark.parametrize("code", ["Lock=304", "Checkpoint=304"])
def test_a_process_that_ends_while_it_is_taken_off_is_not_refused(
    fake: FakeCuda, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_checkpoint, "_END_SECONDS", 30.0)
    fake.returns(code)
    cuda = checkpoints(fake)
    with subprocess.Popen(["sleep", "0.2"]) as ending:
        cuda.take_off([ending.pid], PLENTY)
    assert cuda.taken == []


def test_gpu_memory_must_fit_into_host_memory(fake: FakeCuda) -> None:
    fake.uses(800)
    with pytest.raises(CudaRefused, match="800 bytes does not fit into 700"):
        checkpoints(fake).take_off([ME], 700)
    assert fake.calls == []


def test_processes_come_back_only_where_their_memory_is_free(fake: FakeCuda) -> None:
    cuda = checkpoints(fake)
    cuda.freed = (796,)
    fake.uses(300)
    assert not cuda.has_room()
    fake.uses(204)
    assert cuda.has_room()


def test_an_older_driver_says_why_it_cannot(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert why_not(fake.path) == ""
    monkeypatch.setenv("FAKE_VERSION", "12040")
    assert why_not(fake.path) == "the driver is of CUDA 12.4; process checkpoints need CUDA 12.8 (driver 570)"
    monkeypatch.delenv("FAKE_VERSION")
    (tmp_path / "old").mkdir()
    assert why_not(str(build(tmp_path / "old", "-DOLD"))) == "the driver has no cuCheckpointProcessGetState"
    assert "cannot be loaded" in why_not(str(tmp_path / "none.so"))


# ── real processes ────────────────────────────────────────────────────────────────────────────────────────────────

COUNTING = "i=0; while :; do i=$((i+1)); echo $i > count; sleep 0.01; done"


class KeptRun:
    """A real keeper with one rank that counts in a file."""

    def __init__(self, folder: Path, **other: Any) -> None:
        self.folder = folder
        run = {
            "argv": ["sh", "-c", COUNTING],
            "cwd": str(folder.resolve()),
            "env": {"PATH": "/usr/bin:/bin"},
            "logs": str(folder),
            "lease": time.monotonic() + 600,
            "grace": 600,
            "ranks": [{"rank": 0, "env": {}, "log": "1.0.log"}],
            **other,
        }
        command = [sys.executable, "-I", "-S", keeper.__file__]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.order(json.dumps(run))
        self.rank = int(self.says("started")["pids"]["0"])
        until(lambda: self.count() > 0, "the rank counts")

    def order(self, line: str) -> None:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)

    def says(self, event: str) -> dict[str, Any]:
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert answer["event"] == event, answer
        return answer

    def count(self) -> int:
        try:
            return int((self.folder / "count").read_text() or 0)
        except FileNotFoundError:
            return 0

    def state(self) -> str:
        found = find_process(self.rank)
        return "gone" if found is None or found.state in "ZX" else found.state

    def suspend(self) -> dict[str, Any]:
        self.order("suspend")
        return self.says("suspended")

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[KeptRun]:
    found = KeptRun(tmp_path)
    yield found
    found.close()


def test_a_suspended_run_does_nothing_until_it_is_resumed_and_goes_on_where_it_was(run: KeptRun) -> None:
    answer = run.suspend()
    assert answer["bytes"] > 0
    before = run.count()
    assert run.state() in "TD"  # D: sh waits for a child that was stopped between vfork and exec
    time.sleep(0.1)
    assert run.count() == before
    run.order("resume")
    assert run.says("resumed")["seconds"] >= 0
    until(lambda: run.count() > before, "it counts on")
    assert run.suspend()  # again, by another suspender
    run.order("stop 600")
    assert run.says("ended")["status"] == -signal.SIGKILL  # at once: it could not save
    assert run.says("over") == {"event": "over", "why": "order"}


def test_a_suspended_run_ends_with_its_lease(tmp_path: Path) -> None:
    run = KeptRun(tmp_path, lease=time.monotonic() + 1.0)
    try:
        run.suspend()
        assert run.says("ended")["warned"]
        assert run.says("over")["why"] == "lease"
    finally:
        run.close()


@pytest.mark.parametrize("argv", [["sh", "-c", COUNTING], ["setsid", "-w", "sh", "-c", COUNTING]])
def test_no_process_stays_frozen_when_its_keeper_is_killed(tmp_path: Path, argv: list[str]) -> None:
    run = KeptRun(tmp_path, argv=argv)
    below = [process.pid for process in processes.descendants([run.process.pid], processes.all_processes())]
    run.suspend()
    run.close()
    until(lambda: not any((p := find_process(pid)) and p.state not in "ZX" for pid in below), "all are killed")


def test_a_run_whose_suspender_is_killed_ends(run: KeptRun) -> None:
    run.suspend()
    children = [process.pid for process in processes.all_processes() if process.parent == run.process.pid]
    (suspender,) = [pid for pid in children if pid != run.rank]
    os.kill(suspender, signal.SIGKILL)
    assert run.says("ended")["status"] == -signal.SIGKILL
    assert run.says("over")["why"] == "suspender"


def test_a_run_is_taken_off_its_gpu_before_it_is_stopped(fake: FakeCuda, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    run = KeptRun(tmp_path / "run", cuda={"devices": [0], "cuda": fake.path, "nvml": fake.path})
    try:
        run.suspend()
        assert [call.split()[0] for call in fake.calls][:2] == ["Lock", "Checkpoint"]
        run.order("resume")
        run.says("resumed")
        assert {call.split()[0] for call in fake.calls[-2:]} == {"Restore", "Unlock"}
    finally:
        run.close()


def test_a_refused_suspension_leaves_the_run_running(
    fake: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.returns("Lock=304")
    (tmp_path / "run").mkdir()
    run = KeptRun(tmp_path / "run", cuda={"devices": [0], "cuda": fake.path, "nvml": fake.path})
    try:
        run.order("suspend")
        assert "returned 304, the operating system refused" in run.says("refused")["cause"]
        before = run.count()
        until(lambda: run.count() > before, "it counts on")
    finally:
        run.close()


def test_a_run_that_cannot_be_restored_is_killed_as_lost(fake: FakeCuda, tmp_path: Path) -> None:
    fake.returns("Restore=2")
    (tmp_path / "run").mkdir()
    run = KeptRun(tmp_path / "run", cuda={"devices": [0], "cuda": fake.path, "nvml": fake.path})
    try:
        run.suspend()
        run.order("resume")
        assert "returned 2, out of memory" in run.says("lost")["cause"]
        assert run.says("ended")["status"] == -signal.SIGKILL
        assert run.says("over")["why"] == "suspender"
    finally:
        run.close()
