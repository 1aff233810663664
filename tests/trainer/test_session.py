"""A session tells what it is told to, in the unit of the job's work, and survives whatever is not there."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.agent.workspace import KeeperRecord, Workspace
from shoal.core.batch_limits import BatchLimits
from shoal.core.errors import InputError
from shoal.trainer.environment import RankEnvironment, read_rank_environment
from shoal.trainer.session import Progress, Session, Stopped

KEY = (3, 1)


@pytest.fixture
def folder(tmp_path: Path) -> Workspace:
    made = Workspace(tmp_path, "node")
    os.close(made.lock())
    made.record(KEY, KeeperRecord(1, 1, "boot", "machine"))
    return made


@pytest.fixture
def place(folder: Workspace, tmp_path: Path) -> RankEnvironment:
    return RankEnvironment("job", 1, work=60.0, folder=tmp_path, progress=folder.progress(KEY), lease=folder.lease(KEY))


@pytest.fixture(autouse=True)
def _handler() -> object:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_a_session_tells_reaches_the_agent_in_the_unit_of_the_jobs_work(
    folder: Workspace, place: RankEnvironment
) -> None:
    session = Session(place)
    session.open()
    session.report(Progress(50, 200, saved=20, batch_size=32, loss=0.5))
    until(lambda: folder.read_progress(KEY))
    session.report(Progress(100, 200, saved=20, batch_size=32, loss=float("nan")))
    session.close()
    done, saved, said = folder.read_progress(KEY) or (0.0, None, None)
    assert (done, saved) == (30.0, 6.0)
    assert said is not None
    assert (said.batch_size, said.loss, said.saves) == (32, None, True)
    assert said.rate is None or said.rate > 0


def test_a_session_knows_of_a_stop_by_signal_or_by_its_lease(folder: Workspace, place: RankEnvironment) -> None:
    folder.write_lease(KEY, time.monotonic() + 100, stopping=False)
    session = Session(place)
    session.open()
    told = [session.warned]
    os.kill(os.getpid(), signal.SIGTERM)
    told.append(session.warned)
    assert told == [False, True]
    session.close()
    folder.write_lease(KEY, time.monotonic() + 100, stopping=True)
    other = Session(place)
    other.open()
    assert other.warned
    with pytest.raises(Stopped) as left:
        other.leave()
    assert left.value.code == 0


def test_a_lease_in_its_last_quarter_is_reason_to_save_once(folder: Workspace, place: RankEnvironment) -> None:
    folder.write_lease(KEY, time.monotonic() + 1000, stopping=False)
    session = Session(place)
    session.open()
    assert not session.lapsing
    session.close()
    folder.write_lease(KEY, time.monotonic() - 1, stopping=False)
    late = Session(place)
    late.open()
    told = [late.lapsing]
    late.secured()
    told.append(late.lapsing)
    assert told == [True, False]
    late.close()


def test_training_goes_on_where_nothing_can_be_read_or_written(tmp_path: Path) -> None:
    nowhere = tmp_path / "gone"
    session = Session(RankEnvironment("job", 1, progress=nowhere / "progress", lease=nowhere / "lease"))
    session.open()
    session.report(Progress(1))
    session.close()
    assert not session.warned
    assert not session.lapsing


def test_without_shoal_a_session_does_nothing() -> None:
    session = Session(read_rank_environment({}))
    before = signal.getsignal(signal.SIGTERM)
    session.open()
    session.report(Progress(1))
    session.close()
    assert signal.getsignal(signal.SIGTERM) == before
    assert not session.environment.managed


def test_a_place_is_read_from_the_environment() -> None:
    said = {
        "SHOAL_JOB": "a-b",
        "SHOAL_BATCH": "adaptive",
        "SHOAL_LIMITS": "32 256 4 64",
        "SHOAL_WORK": "12.5",
        "RANK": "1",
        "WORLD_SIZE": "4",
    }
    found = read_rank_environment(said)
    assert (found.job, found.batch, found.work, found.rank, found.world) == ("a-b", 0, 12.5, 1, 4)
    assert found.limits == BatchLimits(32, 256, 4, 64)
    assert read_rank_environment({**said, "SHOAL_BATCH": "128"}).batch == 128
    for name, value in (("SHOAL_LIMITS", "1 2 3"), ("RANK", "first"), ("SHOAL_BATCH", "many")):
        with pytest.raises(InputError, match=name):
            read_rank_environment({**said, name: value})


def test_a_task_of_srun_has_the_rank_that_slurm_gives_it() -> None:
    task = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1"}
    found = read_rank_environment(task)
    assert (found.rank, found.world, found.local_rank) == (3, 4, 1)
    assert read_rank_environment({**task, "RANK": "5", "WORLD_SIZE": "8"}).rank == 5


def test_importing_the_library_brings_in_no_framework() -> None:
    script = "import sys, json, shoal.trainer; shoal.trainer.Session; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout)
    assert "shoal.trainer.session" in loaded
    assert not {"torch", "numpy", "msgspec", "transformers", "lightning"} & set(loaded)
