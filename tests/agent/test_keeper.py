"""A keeper by itself: what it refuses to start, and what it says."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.agent.conftest import until

from shoal.agent import keeper

KEEPER = (sys.executable, "-I", "-S", keeper.__file__)


def told(what: dict[str, Any], *commands: str, command: Sequence[str] = KEEPER) -> list[dict[str, Any]]:
    """All that a keeper says to this. Its input stays open: the end of that would be the end of its agent."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        print(json.dumps(what), *commands, sep="\n", file=process.stdin, flush=True)
        return [json.loads(line) for line in process.stdout]


@pytest.fixture
def what(tmp_path: Path) -> dict[str, Any]:
    return {
        "argv": ["true"],
        "cwd": str(tmp_path.resolve()),
        "env": {"PATH": "/usr/bin:/bin"},
        "logs": str(tmp_path),
        "lease": time.monotonic() + 600,
        "grace": 600,
        "ranks": [{"rank": rank, "env": {}, "log": f"1.{rank}.log"} for rank in (0, 1)],
    }


def causes(said: list[dict[str, Any]]) -> list[str]:
    assert said[-1]["event"] == "over"
    return [line["cause"] for line in said if line["event"] == "failed"]


def test_after_its_lease_nothing_is_started(what: dict[str, Any], tmp_path: Path) -> None:
    assert told({**what, "lease": time.monotonic()}) == [{"event": "over", "why": "lease"}]
    assert not list(tmp_path.iterdir())


def test_a_start_that_hangs_until_the_lease_ends_is_the_nodes_fault(what: dict[str, Any]) -> None:
    hanging = (
        "import sys, time\n"
        "from shoal.agent import keeper\n"
        "keeper.become_process = lambda *_, **__: time.sleep(600)\n"
        "keeper.handle_signals()\n"
        "sys.exit(keeper.keep())"
    )
    late = {**what, "lease": time.monotonic() + 2.0, "grace": 0}
    failed, over = told(late, command=(sys.executable, "-c", hanging))
    assert failed == {"event": "failed", "cause": "rank 0: it was not started before the lease ended", "why": "node"}
    assert over["event"] == "over"


@pytest.mark.parametrize("ranks", [0, 2])
def test_a_stop_does_not_hide_that_the_lease_had_passed(what: dict[str, Any], ranks: int) -> None:
    late = {**what, "lease": 0.0, "ranks": what["ranks"][:ranks]}
    assert told(late, "stop 10.0") == [{"event": "over", "why": "lease"}]


def test_ranks_start_and_end_and_are_reported(what: dict[str, Any]) -> None:
    said = told({**what, "argv": ["sh", "-c", "exec sleep 600"]}, "stop 0")
    assert said[0]["event"] == "started"
    assert said[0]["pids"].keys() == {"0", "1"}
    assert sorted(line["rank"] for line in said[1:-1]) == [0, 1]
    assert {line["status"] for line in said[1:-1]} <= {-15, -9}
    assert said[-1] == {"event": "over", "why": "order"}


@pytest.mark.parametrize("main", [False, True])
def test_the_signal_before_the_time_limit_reaches_the_ranks(what: dict[str, Any], tmp_path: Path, main: bool) -> None:
    child = "trap 'echo child; exit' USR1; sleep 1.2 & wait"
    script = f'trap "wait; echo warned; exit 3" USR1; sh -c "{child}" & wait'
    signal = {"number": 10, "main": main, "after": 0.4}
    said = told({**what, "argv": ["sh", "-c", script], "ranks": what["ranks"][:1], "signal": signal})
    assert [line.get("status") for line in said] == [None, 3, None]
    assert (tmp_path / "1.0.log").read_text().splitlines() == [*(["child"] * (not main)), "warned"]


def test_a_folder_that_was_replaced_by_a_link_is_not_entered(what: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/")
    (cause,) = causes(told({**what, "cwd": str(tmp_path / "link")}))
    assert cause == f"rank 0: the working directory '{tmp_path}/link' has become a link to '/'"


def test_a_link_in_place_of_a_log_is_not_written_through(what: dict[str, Any], tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.touch()
    (tmp_path / "1.1.log").symlink_to(victim)
    (cause,) = causes(told({**what, "argv": ["sh", "-c", "while :; do echo x; done"]}))
    assert cause.startswith("cannot write the log '1.1.log'")
    assert victim.read_text() == ""


def test_logs_are_appended_to_and_begin_with_the_agents_note(what: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "1.0.log").write_text("before\n")
    said = told({**what, "argv": ["echo", "after"], "ranks": [{**what["ranks"][0], "note": "a note\n"}]}, "lease 1e300")
    assert said[-1]["event"] == "over"
    assert (tmp_path / "1.0.log").read_text() == "before\na note\nafter\n"


@pytest.mark.parametrize(
    ("argv", "env", "sentence"),
    [
        (["true\0"], {}, "cannot be passed on"),
        (["true", "x" * 2**20], {}, "Argument list too long"),
        (["true"], {"A=B": "c"}, "cannot be passed on"),
        (["none"], {}, "no such program on the job's PATH (/usr/bin:/bin)"),
        (["./none"], {}, "no such file on this node"),
        (["/"], {}, "it is a folder; name the program to run, or a file in it"),
        ([__file__], {}, "not executable"),
    ],
)
def test_why_a_program_cannot_be_executed(
    what: dict[str, Any], argv: list[str], env: dict[str, str], sentence: str
) -> None:
    (cause,) = causes(told({**what, "argv": argv, "env": {**what["env"], **env}}))
    assert cause.startswith("rank 0: cannot start")
    assert sentence in cause


def test_workers_apart_end_alone_leave_in_time_and_their_store_stays_until_the_run_is_stopped(
    what: dict[str, Any], tmp_path: Path
) -> None:
    store = {"argv": ["sh", "-c", "read line; echo closed"], "env": {}, "log": "1.store.log"}
    argv = ["sh", "-c", 'if [ "$RANK" = 0 ]; then exit 3; else exec sleep 600; fi']
    ranks = [{**rank, "env": {"RANK": str(rank["rank"])}} for rank in what["ranks"]]
    apart = {**what, "argv": argv, "ranks": ranks, "apart": True, "store": store}
    command = [sys.executable, "-I", "-S", keeper.__file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        lines = (json.loads(line) for line in process.stdout)
        print(json.dumps(apart), file=process.stdin, flush=True)
        heard = [next(lines) for _ in range(3)]
        assert heard[1:] == [
            {"event": "ended", "rank": 0, "status": 3, "warned": False},
            {"event": "cleared", "rank": 0},
        ]
        print("release 1 0", file=process.stdin, flush=True)
        assert next(lines) == {"event": "ended", "rank": 1, "status": -9, "warned": False}
        assert next(lines) == {"event": "cleared", "rank": 1}
        print("stop 600", file=process.stdin, flush=True)
        assert next(lines) == {"event": "over", "why": ""}
    assert (tmp_path / "1.store.log").read_text() == ""


def test_a_store_that_ends_takes_the_workers_with_it(what: dict[str, Any]) -> None:
    store = {"argv": ["false"], "env": {}, "log": "1.store.log"}
    said = told({**what, "argv": ["sleep", "600"], "apart": True, "store": store})
    assert causes(said) == ["the store of the job's workers ended; see its log on this node"]
    assert said[-1]["why"] == "store"


TRAPPED = "trap 'sleep 0.4; echo saved; exit' TERM; touch up; while :; do sleep 0.02; done"
DEAF = "trap '' TERM; touch up; while :; do sleep 0.02; done"


@pytest.mark.parametrize(
    ("program", "stop", "saves"),
    [(TRAPPED, "stop 600", True), (TRAPPED, "stop 0.1", False), (DEAF, "stop 0.1", False)],
    ids=["it saves", "it saves too slowly", "it ignores the warning"],
)
@pytest.mark.parametrize("start", ['sh -c "$0"; true', 'setsid -w sh -c "$0"; true'], ids=["in its group", "apart"])
def test_a_program_whose_shell_the_warning_ended_keeps_the_grace(
    what: dict[str, Any], tmp_path: Path, start: str, program: str, stop: str, saves: bool
) -> None:
    ranks = [{**what["ranks"][0], "env": {"SHOAL_RANK": "0"}}]
    with subprocess.Popen(KEEPER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        run = {**what, "argv": ["sh", "-c", start, program], "ranks": ranks}
        print(json.dumps(run), file=process.stdin, flush=True)
        until((tmp_path / "up").exists, "the program runs")
        print(stop, file=process.stdin, flush=True)
        said = [json.loads(line) for line in process.stdout]
    assert said[1:] == [
        {"event": "ended", "rank": 0, "status": -15, "warned": True},
        {"event": "over", "why": "order"},
    ]
    assert ("saved" in (tmp_path / "1.0.log").read_text()) is saves


def test_what_a_program_leaves_that_ends_by_itself_is_killed_at_once(what: dict[str, Any], tmp_path: Path) -> None:
    script = f'trap "exit 0" TERM; sh -c "{DEAF}" & wait'  # the trap first: the child may be up before the next command
    run = {**what, "argv": ["bash", "-c", script], "ranks": what["ranks"][:1]}
    with subprocess.Popen(KEEPER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        print(json.dumps(run), file=process.stdin, flush=True)
        until((tmp_path / "up").exists, "the program runs")
        print("stop 600", file=process.stdin, flush=True)
        said = [json.loads(line) for line in process.stdout]
    assert [line.get("status") for line in said] == [None, 0, None]


def test_a_keeper_without_a_command_does_nothing() -> None:
    done = subprocess.run([sys.executable, "-I", "-S", keeper.__file__], input=b"{", capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")
