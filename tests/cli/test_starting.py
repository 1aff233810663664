"""Commands wait for a `shoal up` that is starting, and for no other."""

import os
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from shoal.cli import starting

STARTED = 100


def process(folder: Path, words: str, *, age: float = 5.0, env: str = "", pid: int = 7) -> Path:
    """Write what /proc shows of a process; return the folder."""
    own = folder / str(pid)
    own.mkdir(parents=True)
    (own / "cmdline").write_text("\0".join([*words.split(), ""]))
    (own / "environ").write_text(env)
    (own / "cwd").symlink_to("/")
    ticks = STARTED * os.sysconf("SC_CLK_TCK")
    (own / "stat").write_text(f"{pid} (a) b) S " + "0 " * 18 + f"{ticks} 0")
    (folder / "uptime").write_text(f"{STARTED + age} 1")
    return folder


@pytest.mark.parametrize(
    ("words", "more", "found"),
    [
        ("python /venv/bin/shoal up --nodes 2x2", {}, True),
        ("python -m shoal up --home home", {}, True),
        ("python -m shoal up --home=home --nodes 1x1", {}, True),
        ("python -m shoal up --home other", {}, False),
        ("python -m shoal up --home=other", {}, False),
        ("python -m shoal up", {"env": "SHOAL_HOME=home"}, True),
        ("python -m shoal queue", {}, False),
        ("vim up", {}, False),
        ("python -m shoal up", {"age": 1000.0}, False),
        ("python -m shoal up", {"env": "SHOAL_HOME=/other"}, False),
    ],
)
def test_a_start_is_that_of_a_new_process_of_the_same_home(
    tmp_path: Path, words: str, more: Mapping[str, float | str], found: bool
) -> None:
    home = Path("/home")
    env = more.get("env", f"SHOAL_HOME={home}")
    processes = process(tmp_path, words, age=float(more.get("age", 5.0)), env=str(env))
    assert starting.up_is_starting(home, processes) is found


def test_a_start_is_found_beside_those_of_other_homes(tmp_path: Path) -> None:
    for pid, home in enumerate(("/first", "/mine", "/last"), start=5):
        process(tmp_path, f"python -m shoal up --home {home}", pid=pid)
    assert all(starting.up_is_starting(Path(home), tmp_path) for home in ("/first", "/mine", "/last"))
    assert not starting.up_is_starting(Path("/other"), tmp_path)


def test_a_command_waits_until_the_cluster_answers_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(starting, "up_is_starting", lambda home: True)
    monkeypatch.setattr(starting, "_PAUSE_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        reads: list[dict[str, str | None]] = [{}, {"server": "http://127.0.0.1:1"}, {"server": url}]
        starting.wait_for_start(Path("/home"), lambda: reads.pop(0))
    assert reads == []
    assert capsys.readouterr().err.count("waiting for the cluster") == 1


def test_a_command_does_not_wait_if_no_cluster_is_starting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(starting, "up_is_starting", lambda home: False)
    starting.wait_for_start(Path("/home"), dict)
    assert capsys.readouterr().err == ""
