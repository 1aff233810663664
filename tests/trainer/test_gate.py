"""The gate inside a job: what waits there, until when, and which jobs can be held."""

import json
import sys
import threading
from pathlib import Path

import pytest

from shoal.trainer import gate
from shoal.trainer.environment import RankEnvironment
from shoal.trainer.session import Progress, Session


@pytest.fixture
def closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A closed gate, and the folder in which the job reports; nothing is imported at the gate."""
    monkeypatch.setattr(gate, "import_module", lambda name: None)
    (tmp_path / "gate").touch()
    (tmp_path / "own").mkdir()
    monkeypatch.setenv("SHOAL_GATE", str(tmp_path / "gate"))
    monkeypatch.setenv("SHOAL_PROGRESS", str(tmp_path / "own" / "progress"))
    return tmp_path


def waits_until_opened(action: threading.Thread, folder: Path) -> None:
    arrived = folder / "own" / "gate"
    action.start()
    for _ in range(1000):
        if arrived.exists():
            break
        action.join(0.01)
    assert arrived.exists()
    action.join(0.05)
    assert action.is_alive()
    (folder / "gate").unlink()
    action.join(10)
    assert not action.is_alive()


def test_a_process_waits_at_the_gate_and_says_so(closed: Path) -> None:
    waits_until_opened(threading.Thread(target=gate.wait, daemon=True), closed)


def test_a_process_imports_what_the_first_optimizer_needs_before_it_reports_its_arrival(
    closed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported = list[tuple[str, bool, threading.Thread]]()
    waiting = threading.Thread(target=gate.wait, daemon=True)

    def note(name: str) -> None:
        imported.append((name, (closed / "own" / "gate").exists(), threading.current_thread()))

    monkeypatch.setitem(sys.modules, "torch", sys)
    monkeypatch.setattr(gate, "import_module", note)
    waits_until_opened(waiting, closed)
    assert imported == [("torch._dynamo", False, waiting)]


def test_a_process_reads_its_newest_checkpoint_before_it_reports_its_arrival(
    closed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[tuple[Path, bool]]()
    monkeypatch.setenv("SHOAL_DIR", str(closed))
    monkeypatch.setattr(gate, "read_newest_ahead", lambda path: read.append((path, (closed / "own" / "gate").exists())))
    waits_until_opened(threading.Thread(target=gate.wait, daemon=True), closed)
    assert read == [(closed / "checkpoints", False)]


def test_the_first_use_of_cuda_waits_at_the_gate(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    used = []
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: used.append(1))
    gate.install()
    assert not used
    waits_until_opened(threading.Thread(target=lambda: torch.cuda._lazy_init(), daemon=True), closed)
    torch.cuda._lazy_init()
    assert used == [1, 1]


def test_a_session_waits_at_the_gate(closed: Path) -> None:
    session = Session(RankEnvironment(job="a", rank=1))
    waits_until_opened(threading.Thread(target=session.open, daemon=True), closed)


@pytest.mark.parametrize("value", ["", "off", "/nonexistent/gate"])
def test_without_a_closed_gate_nothing_waits_and_torch_is_left_alone(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    before = torch.cuda._lazy_init
    monkeypatch.setenv("SHOAL_GATE", value)
    gate.wait()
    gate.install()
    assert torch.cuda._lazy_init is before


@pytest.mark.parametrize(("available", "told"), [(True, True), (False, None)])
def test_a_job_that_used_cuda_before_it_imported_the_library_is_not_held_next_time(
    available: bool, told: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "AVAILABLE", available)
    monkeypatch.setitem(sys.modules, "torch", sys)
    session = Session(RankEnvironment(job="a", progress=tmp_path / "progress", lease=tmp_path / "lease"))
    session.open()
    session.report(Progress(1.0, saved=1.0))
    session.close()
    report = json.loads((tmp_path / "progress").read_text().splitlines()[1])
    assert report.get("gate") is told
