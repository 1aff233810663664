"""`shoal run` against a server that knows its answers by heart."""

from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_live_commands import Fake, Shoal, cluster, detail, ended, row, running

from shoal.wire.messages import LogPart, Submitted

__all__ = ["cluster"]


@pytest.fixture
def later(cluster: Fake, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is answered about job-aaaa, one after another; the last for ever. Its log is `hello`."""
    monkeypatch.setattr("shoal.cli.run._POLL_SECONDS", 0.0)
    monkeypatch.setattr("shoal.cli.logs._POLL_SECONDS", 0.0)
    states = [detail(row("job-aaaa")), detail(running("job-aaaa"))]
    cluster.answers["POST /v1/jobs"] = 201, Submitted(["job-aaaa"])
    cluster.answers["GET /v1/jobs/job-aaaa"] = lambda _: (200, states.pop(0) if len(states) > 1 else states[0])
    part = LogPart("job-aaaa", 1, 0, 0, 6, "hello\n", live=False, next=6)
    empty = LogPart("job-aaaa", 1, 0, 6, 6, "", live=False, next=6)
    cluster.answers["GET /v1/jobs/job-aaaa/log"] = lambda asked: (200, empty if "offset=6" in asked.path else part)
    return states


@pytest.mark.parametrize(
    ("state", "status", "code"), [("completed", 0, 0), ("failed", 5, 5), ("failed", -9, 137), ("failed", None, 1)]
)
def test_run_prints_the_output_and_exits_with_the_status(
    shoal: Shoal, cluster: Fake, later: list[Any], state: str, status: int | None, code: int
) -> None:
    later.append(detail(ended("job-aaaa", state=state, reason="rank 0 failed"), incarnation=1, exit_status=status))
    found, out, err = shoal("run", "--gpus", "2", "--", "train")
    assert (found, out) == (code, "hello\n")
    assert "shoal: submitted job-aaaa\n" in err
    assert "waits: needs 4 GPUs" in err
    assert ("rank 0 failed" in err) == bool(code)
    (asked,) = [asked for asked in cluster.asked if asked.method == "POST"]
    assert (asked.body["gpus"], asked.body["retries"], asked.body["command"]) == (2, 0, ["train"])


def test_run_cancels_its_job_on_ctrl_c(shoal: Shoal, cluster: Fake, later: list[Any], monkeypatch: Any) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("shoal.cli.run.follow_job", interrupted)
    cluster.answers["DELETE /v1/jobs/job-aaaa"] = 204, None
    code, _, err = shoal("run", "--", "train")
    assert code == 130
    assert "cancelled job-aaaa" in err


def test_run_takes_conditions_limits_and_the_folder_as_submit_does(
    shoal: Shoal, cluster: Fake, later: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.py").write_text("print(1)")
    monkeypatch.chdir(tmp_path)
    later[:] = [detail(row("job-aaaa", state="held", reason="waits for prep-bbbb to end")), detail(ended("job-aaaa"))]
    cluster.jobs(row("prep-bbbb"))
    cluster.answers["GET /v1/jobs/job-aaaa"] = lambda _: (200, later.pop(0) if len(later) > 1 else later[0])
    monkeypatch.setattr("shoal.cli.ship.ship", lambda *_: "d" * 64)
    code, _, err = shoal("run", "--after", "prep-bbbb:any", "--time", "2h", "--ship", "--", "python", "a.py")
    assert code == 0, err
    (asked,) = [asked for asked in cluster.asked if asked.method == "POST"]
    assert asked.body["after"] == [{"job": "prep-bbbb", "when": "any"}]
    assert (asked.body["time"], asked.body["code"], asked.body.get("workdir")) == (7200.0, "d" * 64, None)
    assert "job-aaaa waits for prep-bbbb to end" in err


def test_a_command_on_a_terminal_that_ended_before_it_was_joined_shows_its_log(
    shoal: Shoal, cluster: Fake, later: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.cli.run.terminal_fields", lambda: {"terminal": "vt100", "rows": 24, "columns": 80})
    later[:] = [detail(ended("job-aaaa", state="failed", reason="rank 0 failed"), incarnation=1, exit_status=3)]
    code, out, err = shoal("run", "--pty", "--", "nvidia-smi")
    assert (code, out) == (3, "hello\n")
    assert "cancelled" not in err


def test_a_terminal_is_needed_for_pty(shoal: Shoal, cluster: Fake) -> None:
    for words in (["run", "--pty", "--", "bash"], ["exec", "job", "--pty", "--", "bash"], ["attach", "job"]):
        code, _, err = shoal(*words)
        assert code == 2
        assert "needs a terminal as standard input and output" in err
    assert cluster.asked == []
