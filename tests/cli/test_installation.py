"""A plain install runs agents and clients; a missing extra is one line that says what to install; shells complete."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete

from shoal.cli import shoal as group

Shoal = Callable[..., tuple[int, str, str]]

PLAIN = ("click", "rich", "msgspec", "yaml", "shoal", "typing_extensions", "markdown_it", "mdurl", "pygments")
"""Packages of a plain install: its four dependencies, and what those need."""

BLOCKED = """
import sys
allowed = set({allowed!r}) | set(sys.stdlib_module_names)


class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in allowed and not name.startswith(("_virtualenv", "__editable__")):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Blocker())
from shoal.cli import main

main(sys.argv[1:])
"""

JOB = {
    "id": "bert-k3fa", "name": "bert", "tenant": "nlp", "state": "running", "gpus_held": 1, "gpus_wanted": 1,
    "submitted": 1.0, "started": 2.0, "ended": None, "done": 0.0, "work": 9.0, "kind": "a100", "nodes": ["n0"],
    "reason": "runs: it fits", "start": {"median": 1.0, "low": 1.0, "high": 2.0},
}  # fmt: skip
DETAIL = {
    "job": JOB, "command": ["python"], "workdir": None, "ranks": "gpu", "grace": 1.0, "incarnation": 1, "restarts": 0,
    "crashes": 0, "gpu_seconds": 1.0, "rate": 1.0, "decision": "runs", "decided": 1.0, "change": "", "story": [],
}  # fmt: skip
CLUSTER = {
    "version": "1", "protocol": 1, "policy": "las", "cluster": "a100:1x8", "now": 9.0, "up_gpus": 8, "used_gpus": 1,
    "running": 1, "waiting": 0, "ended": 0, "decisions": 1,
}  # fmt: skip
NODE = {"name": "n0", "kind": "a100", "gpus": 8, "rack": "", "up": True, "used": 1, "jobs": ["bert-k3fa"], "heard": 8.0}
LOG = {"job": "bert-k3fa", "incarnation": 1, "rank": 0, "offset": 0, "size": 3, "text": "hi\n", "live": True, "next": 3}
ANSWERS: dict[str, Any] = {
    "/v1/jobs": [JOB],
    "/v1/jobs/bert-k3fa": DETAIL,
    "/v1/jobs/bert-k3fa/log": LOG,
    "/v1/cluster": CLUSTER,
    "/v1/nodes": [NODE],
}


class Answering(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer(200, ANSWERS[self.path.partition("?")[0]])

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(201, {"jobs": ["train-0000"]})

    def do_DELETE(self) -> None:
        self._answer(204, None)

    def _answer(self, status: int, document: Any) -> None:
        body = b"" if document is None else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Stay quiet."""


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{served.server_port}"
        served.shutdown()
        thread.join()


def run_plain(folder: Path, server: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that can import nothing beyond a plain install."""
    return subprocess.run(
        [sys.executable, "-c", BLOCKED.format(allowed=PLAIN), *args],
        cwd=folder,
        env={"SHOAL_SERVER": server, "SHOAL_TOKEN": "t", "HOME": str(folder), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


LIVE = [
    (("queue",), "bert-k3fa"),
    (("queue", "--json"), '"bert-k3fa"'),
    (("why", "bert-k3fa", "--detail"), "bert-k3fa runs"),
    (("job", "bert-k3fa"), "bert-k3fa"),
    (("logs", "bert-k3fa"), "hi"),
    (("cancel", "bert-k3fa"), "cancelled bert-k3fa"),
    (("nodes",), "n0"),
    (("submit", "--", "python", "train.py"), "train-0000"),
    (("submit", "job.yaml"), "train-0000"),
    (("submit", "job.sh"), "train-0000"),
]


@pytest.mark.parametrize(("args", "shown"), LIVE, ids=lambda value: " ".join(value) if isinstance(value, tuple) else "")
def test_clients_need_nothing_beyond_a_plain_install(
    server: str, tmp_path: Path, args: tuple[str, ...], shown: str
) -> None:
    (tmp_path / "job.yaml").write_text("command: [python, train.py]\n")
    (tmp_path / "job.sh").write_text("#!/bin/bash\n#SBATCH -G 1\n")
    ended = run_plain(tmp_path, server, *args)
    assert (ended.returncode, shown in ended.stdout) == (0, True), ended.stderr


def test_an_agent_needs_nothing_beyond_a_plain_install(tmp_path: Path) -> None:
    # Refused by its settings, after every import.
    (tmp_path / "token").write_text("t")
    options = ("--token-file", str(tmp_path / "token"), "--kind", "a b", "--gpus", "1", "--node", "n0")
    ended = run_plain(tmp_path, "http://127.0.0.1:1", "agent", *options)
    assert ended.returncode == 2
    assert ended.stderr.startswith("shoal agent: kind: 'a b': must be letters, digits")


@pytest.mark.parametrize(
    ("args", "package", "extra"),
    [
        (("simulate", "--workload", "demo", "--cluster", "v100:1x1", "--policy", "fifo"), "numpy", "sim"),
        (("policies",), "numpy", "sim"),
        (("up", "--nodes", "1x1"), "numpy", "server"),
        (("serve", "--cluster", "v100:1x1"), "starlette", "server"),
    ],
)
def test_a_missing_extra_is_one_line_that_says_what_to_install(
    tmp_path: Path, args: tuple[str, ...], package: str, extra: str
) -> None:
    ended = run_plain(tmp_path, "http://127.0.0.1:1", *args)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"shoal: this command needs the package {package}: pip install 'shoal[{extra}]'\n"


def test_a_package_that_no_extra_installs_is_a_bug_and_not_hidden(shoal: Shoal, monkeypatch: Any) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ModuleNotFoundError("No module named 'nosuch'", name="nosuch")

    monkeypatch.setattr(click.Group, "main", broken)
    with pytest.raises(ModuleNotFoundError):
        group.main(["policies"])


# ── completion ────────────────────────────────────────────────────────────────────────────────────────────────────


def completed(args: list[str], incomplete: str) -> list[str]:
    return [
        item.value for item in ShellComplete(group, {}, "shoal", "_SHOAL_COMPLETE").get_completions(args, incomplete)
    ]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_printed_for_each_shell(shoal: Shoal, shell: str) -> None:
    code, out, _ = shoal("completion", shell)
    assert code == 0
    assert "_SHOAL_COMPLETE" in out


def test_commands_options_and_policies_are_completed() -> None:
    assert completed([], "sim") == ["simulate"]
    assert completed([], "re") == ["report", "replay", "repro", "release", "requeue", "resize"]
    assert completed(["simulate"], "--restart") == ["--restart-cost"]
    for command in ("simulate", "up", "serve", "whatif"):
        assert completed([command, "--policy"], "gavel.c") == ["gavel.cost", "gavel.cost-slo"]


def test_ids_of_live_jobs_are_completed_where_the_cluster_answers(server: str, monkeypatch: Any) -> None:
    monkeypatch.setenv("SHOAL_SERVER", server)
    monkeypatch.setenv("SHOAL_TOKEN", "t")
    assert completed(["why"], "b") == ["bert-k3fa"]
    assert completed(["cancel", "x"], "z") == []
    monkeypatch.setenv("SHOAL_SERVER", "http://127.0.0.1:1")
    assert completed(["why"], "b") == []
