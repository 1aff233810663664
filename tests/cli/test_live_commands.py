"""The commands of a live cluster, against a server that knows its answers by heart."""

import base64
import json
import os
import signal
import socket
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
import pytest

from shoal.cli import queue as queue_command
from shoal.cli.client import choose_job
from shoal.cli.live_tables import spread
from shoal.core.errors import InputError
from shoal.core.units import span
from shoal.wire.login_messages import LoginCode
from shoal.wire.messages import (
    AcctRow,
    ClusterRow,
    JobDetail,
    JobRow,
    LogPart,
    Moment,
    NodeAdded,
    NodeRow,
    ProblemDetails,
    StartForecast,
    Submitted,
    TenantRow,
    TokenRow,
)

Shoal = Callable[..., tuple[int, str, str]]

# ── a cluster made of answers ────────────────────────────────────────────────────────────────────────────────────

NOW = 1_700_000_000.0
TOKEN = "secret-of-nlp"

CLUSTER = ClusterRow(
    version="0.1.0",
    protocol=1,
    policy="fifo",
    cluster="a100:1x8,k80:1x4",
    now=NOW,
    up_gpus=12,
    used_gpus=8,
    running=2,
    waiting=2,
    ended=1,
    decisions=41,
)


def row(id: str, **changed: Any) -> JobRow:
    settings: dict[str, Any] = {
        "id": id,
        "name": id.rpartition("-")[0],
        "tenant": "nlp",
        "state": "pending",
        "gpus_held": 0,
        "gpus_wanted": 4,
        "submitted": NOW - 600,
        "started": None,
        "ended": None,
        "done": 0.0,
        "work": None,
        "kind": None,
        "nodes": [],
        "reason": "waits: needs 4 GPUs; 0 left when its turn comes",
    }
    return JobRow(**{**settings, **changed})


def running(id: str, **changed: Any) -> JobRow:
    held = {"state": "running", "gpus_held": 4, "started": NOW - 500, "kind": "a100", "nodes": ["a100-0"]}
    return row(id, **{**held, "reason": "runs: it fits, 8 of 12 GPUs are in use", **changed})


def ended(id: str, **changed: Any) -> JobRow:
    return row(id, **{"state": "completed", "started": NOW - 500, "ended": NOW - 60, "reason": "", **changed})


def detail(job: JobRow, **changed: Any) -> JobDetail:
    settings: dict[str, Any] = {
        "job": job,
        "command": ["python", "train.py", "--name", "two words"],
        "workdir": "/data/nlp",
        "ranks": "gpu",
        "grace": 10.0,
        "incarnation": 0 if job.started is None else 1,
        "restarts": 0,
        "crashes": 0,
        "gpu_seconds": 0.0 if job.started is None else 4 * 500.0,
        "rate": 0.0,
        "decision": job.reason,
        "decided": NOW - 3,
        "change": "",
        "story": [Moment(job.submitted, "submitted by nlp")],
    }
    return JobDetail(**{**settings, **changed})


JOBS = [
    row(
        "wide-x2f3",
        gpus_wanted=8,
        position=1,
        start=StartForecast(240.0, 120.0, 540.0),
        reason="waits its turn: bert-k3fa is first and needs 8 GPUs where 4 are free",
    ),
    running("bert-k3fa", done=450.0, work=1000.0),
    row("tail-aaaa", tenant="vision", position=2, submitted=NOW - 30, start=StartForecast(7300.0, 7300.0, 7300.0)),
    running("resnet-b7c1", tenant="vision", started=NOW - 5000, submitted=NOW - 90_000, kind="k80", nodes=["k80-0"]),
    ended("old-zzzz"),
]


@dataclass(slots=True)
class Asked:
    """A request as it came."""

    method: str
    path: str
    token: str
    body: Any


Answer = tuple[int, Any]
"""A status and a message, or the bytes of one; None in its place hangs up."""


@dataclass(slots=True)
class Fake:
    """What is answered to ``METHOD /path`` (the query counts where it is given), and what was asked."""

    url: str
    answers: dict[str, Answer | Callable[[Asked], Answer | None]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)

    def jobs(self, *jobs: JobRow | JobDetail) -> None:
        """Have these jobs."""
        details = [job if isinstance(job, JobDetail) else detail(job) for job in jobs]
        rows = [each.job for each in details]
        self.answers["GET /v1/jobs"] = lambda asked: (200, listed(rows, dict(parse_qsl(urlsplit(asked.path).query))))
        for each in details:
            self.answers[f"GET /v1/jobs/{each.job.id}"] = 200, each
            self.answers[f"DELETE /v1/jobs/{each.job.id}"] = 200, {}
            self.answers[f"PATCH /v1/jobs/{each.job.id}"] = 200, {}

    def paths(self) -> list[str]:
        """What was asked, in order."""
        return [f"{asked.method} {asked.path}" for asked in self.asked]


def listed(rows: Sequence[JobRow], query: dict[str, str]) -> list[JobRow]:
    """The page that a server lists: running jobs by start, then waiting ones by position, then ended ones."""

    def place(row: JobRow) -> tuple[int, float]:
        if row.ended is not None:
            return 2, -row.ended
        return (1, row.position) if row.position is not None else (0, row.started or row.submitted)

    match, tenant = query.get("match"), query.get("tenant")
    found = [
        row
        for row in sorted(rows, key=place)
        if (row.ended is None or "all" in query)
        and tenant in (None, row.tenant)
        and (match is None or row.name == match or row.id.startswith(match))
    ]
    first = int(query.get("offset", 0))
    return found[first : first + int(query.get("limit", 100))]


def unknown(what: str, value: str) -> Answer:
    return 404, ProblemDetails(f"{what}: {value!r}: unknown", field=what, value=value, hint="unknown")


@contextmanager
def serving() -> Iterator[Fake]:
    """A fake cluster that listens on a port of its own."""
    fake = Fake("")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = msgspec.json.decode(self.rfile.read(length)) if length else None
            asked = Asked(self.command, self.path, self.headers["Authorization"].removeprefix("Bearer "), body)
            fake.asked.append(asked)
            whole, bare = (f"{self.command} {path}" for path in (self.path, urlsplit(self.path).path))
            answer = fake.answers.get(whole) or fake.answers.get(bare)
            said = answer(asked) if callable(answer) else answer or unknown("job", bare.rpartition("/")[2])
            if said is None:
                self.close_connection = True
                return
            status, message = said
            data = message if isinstance(message, bytes) else msgspec.json.encode(message)
            data = b"" if status == 204 else data
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_DELETE = do_PATCH = do_GET  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """Say nothing of a caller who left: some are meant to."""

    server = Server(("127.0.0.1", 0), Handler)
    fake.url = f"http://127.0.0.1:{server.server_port}"
    fake.answers["GET /v1/cluster"] = 200, CLUSTER
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Fake]:
    """A cluster that the environment names, with five jobs."""
    with serving() as fake:
        monkeypatch.setenv("SHOAL_SERVER", fake.url)
        monkeypatch.setenv("SHOAL_TOKEN", TOKEN)
        monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
        monkeypatch.delenv("SHOAL_CAFILE", raising=False)
        fake.jobs(*JOBS)
        yield fake


def given(shoal: Shoal, *args: str) -> Any:
    code, out, err = shoal(*args, "--json")
    assert code == 0, err
    return json.loads(out)


# ── which cluster ────────────────────────────────────────────────────────────────────────────────────────────────


def stored(home: Path, text: str) -> None:
    home.mkdir()
    (home / "client.json").write_text(text)


def test_without_a_cluster_one_line_says_how_to_get_one(shoal: Shoal, cluster: Fake, monkeypatch: Any) -> None:
    monkeypatch.delenv("SHOAL_SERVER")
    said = "shoal: no cluster: start one with `shoal up`, or set SHOAL_SERVER\n"
    assert shoal("queue") == (2, "", said)


def test_the_help_of_a_subcommand_needs_no_cluster(shoal: Shoal, cluster: Fake, monkeypatch: Any) -> None:
    monkeypatch.delenv("SHOAL_SERVER")
    for words in (("nodes", "drain"), ("quota", "set"), ("policy", "switch"), ("token", "create")):
        code, out, err = shoal(*words, "--help")
        assert (code, err) == (0, "")
        assert out.startswith(f"Usage: shoal {' '.join(words)} ")


def test_what_up_left_behind_is_found(shoal: Shoal, cluster: Fake, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.delenv("SHOAL_SERVER")
    monkeypatch.delenv("SHOAL_TOKEN")
    stored(tmp_path / "home", json.dumps({"server": cluster.url, "token": "stored", "cafile": None}))
    assert shoal("queue")[0] == 0
    assert {asked.token for asked in cluster.asked} == {"stored"}


def test_a_stored_token_goes_to_its_own_server_only(
    shoal: Shoal, cluster: Fake, monkeypatch: Any, tmp_path: Path
) -> None:
    monkeypatch.delenv("SHOAL_TOKEN")
    stored(tmp_path / "home", json.dumps({"server": "http://127.0.0.1:1", "token": "stored", "cafile": None}))
    code, _, err = shoal("queue", "--server", cluster.url)
    assert (code, cluster.asked) == (2, [])
    assert "set SHOAL_TOKEN, or name a --token-file" in err


def test_an_option_goes_before_the_environment(shoal: Shoal, cluster: Fake, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("SHOAL_SERVER", "http://127.0.0.1:1")
    (tmp_path / "token").write_text("from-a-file\n")
    assert shoal("queue", "--server", cluster.url, "--token-file", "token")[0] == 0
    assert {asked.token for asked in cluster.asked} == {"from-a-file"}


@pytest.mark.parametrize(
    ("environment", "args", "says"),
    [
        ({"SHOAL_SERVER": "cluster:7433"}, (), "server: 'cluster:7433'"),
        ({"SHOAL_SERVER": "http://cluster:x"}, (), "server: 'http://cluster:x'"),
        ({"SHOAL_SERVER": "https://cluster", "SHOAL_CAFILE": "no.pem"}, (), "SHOAL_CAFILE: 'no.pem'"),
        ({"SHOAL_TOKEN": "two\nlines"}, (), "token: '…'"),
        ({}, ("--token-file", "no"), "token-file: 'no': cannot be read: No such file"),
    ],
    ids=["no URL", "no port", "no certificate", "a token in two lines", "no token"],
)
def test_a_cluster_that_cannot_be_meant_is_refused(
    shoal: Shoal, cluster: Fake, monkeypatch: Any, environment: dict[str, str], args: tuple[str, ...], says: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    code, out, err = shoal("queue", *args)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err


@pytest.mark.parametrize("text", ["{", "[1]", '{"server": 3}'])
def test_a_client_file_of_something_else_is_refused(
    shoal: Shoal, cluster: Fake, monkeypatch: Any, tmp_path: Path, text: str
) -> None:
    monkeypatch.delenv("SHOAL_SERVER")
    stored(tmp_path / "home", text)
    code, _, err = shoal("queue")
    assert (code, err.count("\n")) == (2, 1)
    assert "client.json" in err


def test_a_server_that_is_not_there_is_one_line_and_exit_code_1(shoal: Shoal, cluster: Fake) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: nobody else gets the port, nobody answers
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        code, out, err = shoal("queue", "--server", url)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert f"cannot reach {url}" in err


@pytest.mark.parametrize(
    ("answer", "code", "says"),
    [
        ((401, ProblemDetails("unknown token")), 2, "shoal: unknown token\n"),
        ((500, ProblemDetails("the loop has stopped")), 1, "shoal: the loop has stopped\n"),
        (
            (422, ProblemDetails("…", field="all", value="maybe", hint="true or false")),
            2,
            "all: 'maybe': true or false\n",
        ),
    ],
    ids=["who are you", "ill", "bad input"],
)
def test_a_refusal_is_one_line(shoal: Shoal, cluster: Fake, answer: Answer, code: int, says: str) -> None:
    cluster.answers["GET /v1/jobs"] = answer
    ended_with, out, err = shoal("queue")
    assert (ended_with, out) == (code, "")
    assert err.endswith(says)


# ── submit ───────────────────────────────────────────────────────────────────────────────────────────────────────


def accept(cluster: Fake) -> None:
    def ids(asked: Asked) -> Answer:
        jobs = asked.body.get("jobs", [asked.body])
        return 200, Submitted([f"{job['name']}-{i:04}" for i, job in enumerate(jobs)])

    cluster.answers["POST /v1/jobs"] = cluster.answers["POST /v1/jobs/batch"] = ids


def test_the_active_python_environment_travels_unless_the_job_names_another(
    shoal: Shoal, cluster: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept(cluster)
    for name, prefix in {"VIRTUAL_ENV": "/venv", "CONDA_PREFIX": "/conda", "PATH": "/venv/bin:/bin"}.items():
        monkeypatch.setenv(name, prefix)
    shoal("submit", "--env", "CONDA_PREFIX=/other", "--retries", "2", "--", "python", "train.py")
    (asked,) = cluster.asked
    env = {"SHOAL_SUBMIT_PATH": "/venv/bin:/bin", "VIRTUAL_ENV": "/venv", "CONDA_PREFIX": "/other"}
    assert (asked.body["env"], asked.body["retries"]) == (env, 2)


def test_a_command_after_dashes_is_submitted_as_it_stands(shoal: Shoal, cluster: Fake, tmp_path: Path) -> None:
    accept(cluster)
    options = ("--gpus", "4", "--min-gpus", "2", "--max-gpus", "8", "--kinds", "a100,h100", "--work", "60")
    more = ("--env", "A=b=c", "--ranks", "node", "--grace", "5", "--weight", "2", "--deadline", "90", "--tenant", "nlp")
    again = ("--resizes", "in_place", "--preemptible", "no")
    code, out, err = shoal("submit", *options, *more, *again, "--", "python", "train.py", "--gpus", "--", "x y")
    assert (code, out) == (0, "train-0000\n")
    assert err == "shoal: train-0000: is never stopped to make room for others, as --preemptible says\n"
    (asked,) = cluster.asked
    assert asked.body["env"].pop("SHOAL_SUBMIT_PATH") == os.environ["PATH"]
    key = asked.body.pop("key")
    assert len(key) == 32
    assert asked.path == "/v1/jobs"
    sent = {name: value for name, value in asked.body.items() if value is not None}
    assert sent == {
        "command": ["python", "train.py", "--gpus", "--", "x y"],
        "name": "train",
        "workdir": str(tmp_path),
        "gpus": 4,
        "min_gpus": 2,
        "max_gpus": 8,
        "kinds": ["a100", "h100"],
        "work": 60.0,
        "env": {"A": "b=c"},
        "preemptible": "no",
        "exclusive": False,
        "hold": False,
        "priority": 0,
        "singleton": False,
        "terminal": False,
        "notify": [],
        "ranks": "node",
        "resizes": "in_place",
        "grace": 5.0,
        "weight": 2.0,
        "deadline": 90.0,
        "tenant": "nlp",
    }


def test_limits_are_submitted_and_nodes_that_do_not_enforce_them_are_named(
    shoal: Shoal, cluster: Fake, tmp_path: Path
) -> None:
    row = NODES[0]
    free = [msgspec.structs.replace(row, name=f"n{i}", no_limits="no cgroups here") for i in range(5)]
    cluster.answers["GET /v1/nodes"] = 200, [*free, msgspec.structs.replace(row, no_limits="")]
    cluster.answers["POST /v1/jobs"] = 201, Submitted(["job-aaaa"])
    said = "CPU and memory limits are not enforced on n0, n1, n2, …: no cgroups here"
    code, _, err = shoal("submit", "--cpus", "4", "--memory", "16G", "--", "true")
    assert (code, err.splitlines()[0]) == (0, f"shoal: {said}")
    (tmp_path / "job.yaml").write_text("command: ['true']\ncpus: 4\nmemory: 16G\n")
    shoal("submit", str(tmp_path / "job.yaml"))
    sent = [asked.body for asked in cluster.asked if asked.path == "/v1/jobs"]
    assert [(job["cpus"], job["memory"]) for job in sent] == [(4, 2**34)] * 2
    cluster.answers["GET /v1/cluster"] = 200, CLUSTER
    assert said in shoal("nodes")[1]
    assert "limits" not in shoal("submit", "--", "true")[2], "nothing is said of limits that nobody asked for"


def test_copies_go_in_one_batch_with_keys_of_their_own(shoal: Shoal, cluster: Fake) -> None:
    accept(cluster)
    code, out, _ = shoal("submit", "-n", "3", "--json", "--", "true")
    assert (code, json.loads(out)) == (0, {"jobs": ["true-0000", "true-0001", "true-0002"]})
    (asked,) = cluster.asked
    assert asked.path == "/v1/jobs/batch"
    assert len({job["key"] for job in asked.body["jobs"]}) == 3


def test_an_owners_key_is_kept_and_made_different_for_each_copy(shoal: Shoal, cluster: Fake, tmp_path: Path) -> None:
    accept(cluster)
    (tmp_path / "j.yaml").write_text("{command: [a], key: mine}")
    shoal("submit", "j.yaml")
    shoal("submit", "j.yaml", "-n", "2")
    assert [asked.body.get("key") for asked in cluster.asked[:1]] == ["mine"]
    assert [job["key"] for job in cluster.asked[1].body["jobs"]] == ["mine.0", "mine.1"]


def test_an_answer_that_was_lost_is_asked_for_again_with_the_same_key(shoal: Shoal, cluster: Fake) -> None:
    answers = iter([None, (200, Submitted(["true-0000"]))])
    cluster.answers["POST /v1/jobs"] = lambda asked: next(answers)
    assert shoal("submit", "--", "true")[:2] == (0, "true-0000\n")
    assert len({asked.body["key"] for asked in cluster.asked}) == 1
    assert len(cluster.asked) == 2


NOT_BEFORE = "until it saves its work it is not stopped to make room for others; it may be suspended in place"


def test_submit_says_once_of_each_kind_of_job_whether_it_is_stopped_to_make_room(
    shoal: Shoal, cluster: Fake, tmp_path: Path
) -> None:
    accept(cluster)
    (tmp_path / "jobs.yaml").write_text("- {command: [a]}\n- {command: [b], preemptible: yes}\n- {command: [c]}\n")
    code, out, err = shoal("submit", "-n", "2", "jobs.yaml")
    assert (code, len(out.splitlines())) == (0, 6)
    stopped = "may be stopped at any time to make room for others, as --preemptible says"
    assert err.splitlines() == [f"shoal: jobs-0000 and 3 more: {NOT_BEFORE}", f"shoal: jobs-0001 and 1 more: {stopped}"]
    assert shoal("submit", "--preemptible", "maybe", "--", "true")[0] == 2


def test_a_script_is_submitted_and_notes_name_what_is_not_applied(shoal: Shoal, cluster: Fake, tmp_path: Path) -> None:
    accept(cluster)
    (tmp_path / "train.sh").write_text("#!/bin/bash\n#SBATCH -G 2 -p gpu --array=0-1\npython train.py\n")
    code, out, err = shoal("submit", "train.sh")
    assert (code, out) == (0, "train_0-0000\ntrain_1-0001\n")
    assert err.startswith("shoal: train.sh: not applied: -p gpu: there are no partitions")
    assert err.splitlines()[-1] == f"shoal: train_0-0000 and 1 more: {NOT_BEFORE}"
    sent = cluster.asked[0].body["jobs"]
    assert [job["command"] for job in sent] == [["/bin/bash", str(tmp_path / "train.sh")]] * 2


def test_sbatch_takes_its_options_before_the_script_and_the_arguments_behind_it(
    shoal: Shoal, cluster: Fake, tmp_path: Path
) -> None:
    accept(cluster)
    (tmp_path / "train.sh").write_text("#!/bin/bash\n#SBATCH -G 2 -J script --array=0-1\npython train.py $1\n")
    code, out, _ = shoal("sbatch", "--parsable", "-J", "line", "--gpus=4", "train.sh", "--lr", "0.1")
    assert (code, out) == (0, "line_0-0000:line_1-0001\n")
    sent = cluster.asked[0].body["jobs"]
    assert [(job["gpus"], job["command"][2:]) for job in sent] == [(4, ["--lr", "0.1"])] * 2


def test_a_command_is_submitted_as_a_batch_script_if_wanted(shoal: Shoal, cluster: Fake) -> None:
    accept(cluster)
    assert shoal("submit", "--slurm", "--env", "A=b", "--", "true")[0] == 0
    body = cluster.asked[0].body
    assert (body["ranks"], body["env"]["SHOAL_SBATCH"], body["env"]["A"]) == ("node", "{}", "b")


def test_sbatch_makes_a_script_of_a_wrapped_command(shoal: Shoal, cluster: Fake) -> None:
    accept(cluster)
    assert shoal("sbatch", "-G1", "--wrap", "python train.py")[:2] == (0, "Submitted batch job wrap-0000\n")
    kept = cluster.asked[0].body["env"]["SHOAL_SCRIPT"]
    assert zlib.decompress(base64.b85decode(kept)).startswith(b"#!/bin/sh\n")


def test_sbatch_says_what_it_would_submit_and_submits_nothing(shoal: Shoal, cluster: Fake, tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("#!/bin/bash\n#SBATCH --gpus=1 --array=0-4\ntrue\n")
    assert shoal("sbatch", "--test-only", "a.sh")[:2] == (0, "a.sh: 5 jobs, nothing submitted\n")
    assert not cluster.asked


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--wrap=a", "b.sh"), "script: 'b.sh': cannot be given with --wrap"),
        (("--wait", "--wrap=a"), "--wait"),
        (("--gpus", "many", "--wrap=a"), "--gpus: 'many': write [KIND:]N"),
        (("no.sh",), "file: 'no.sh': cannot be read"),
        (("dos.sh",), "DOS line breaks"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_sbatch_refuses_what_it_cannot_do_in_one_line(
    shoal: Shoal, cluster: Fake, tmp_path: Path, args: tuple[str, ...], says: str
) -> None:
    (tmp_path / "dos.sh").write_bytes(b"#!/bin/bash\r\ntrue\r\n")
    code, out, err = shoal("sbatch", *args)
    assert (code, out) == (2, "")
    assert says in err
    assert not cluster.asked


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "file: None: give one FILE"),
        (("python", "train.py"), "file: 'python train.py': give one FILE, or `--` and a command"),
        (("j.yaml", "--", "true"), "file: 'j.yaml'"),
        (("--",), "nothing stands after `--`"),
        (("no.yaml",), "file: 'no.yaml': cannot be read: No such file"),
        (("--gpus", "0", "--", "true"), "gpus: 0: must be a whole number from 1"),
        (("--work", "inf", "--", "true"), "work: inf: must be a number above 0"),
        (("--env", "A", "--", "true"), "env: 'A': write K=V"),
        (("--kinds", "a,,b", "--", "true"), "kinds[1]: ''"),
        (("-n", "0", "--", "true"), "count: 0"),
        (("-n", "10001", "--", "true"), "count: 10001"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_bad_submission_is_refused_before_anything_is_sent(
    shoal: Shoal, cluster: Fake, args: tuple[str, ...], says: str
) -> None:
    code, out, err = shoal("submit", *args)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err
    assert cluster.asked == []


FITTING, PAGE = "GET /v1/jobs?all=true&match", "&offset=0&limit=1000"

# ── which job ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("meant", "asked"),
    [
        ("wide-x2f3", ["GET /v1/jobs/wide-x2f3"]),
        ("wid", ["GET /v1/jobs/wid", f"{FITTING}=wid{PAGE}", "GET /v1/jobs/wide-x2f3"]),
        ("bert", ["GET /v1/jobs/bert", f"{FITTING}=bert{PAGE}", "GET /v1/jobs/bert-k3fa"]),
    ],
)
def test_a_job_is_found_by_its_id_a_beginning_of_it_or_its_name(
    shoal: Shoal, cluster: Fake, meant: str, asked: list[str]
) -> None:
    assert given(shoal, "job", meant)["job"]["id"].startswith(meant)
    assert cluster.paths() == asked


def test_an_id_cannot_lead_elsewhere(shoal: Shoal, cluster: Fake) -> None:
    code, _, err = shoal("job", "../tokens?x")
    assert code == 2
    assert cluster.paths()[0] == "GET /v1/jobs/..%2Ftokens%3Fx"
    assert "job: '../tokens?x': unknown" in err


ROWS = [running("a-1111"), row("a-2222"), ended("b-1111", name="b"), ended("b-2222", name="b"), row("b-3333", name="b")]


@pytest.mark.parametrize(
    ("meant", "chosen"), [("a-1", "a-1111"), ("b", "b-3333"), ("b-2", "b-2222")], ids=["prefix", "live", "ended"]
)
def test_of_jobs_that_fit_live_ones_are_meant(meant: str, chosen: str) -> None:
    assert choose_job(ROWS, meant) == chosen


@pytest.mark.parametrize(
    ("meant", "says"),
    [("a-", r"fits 2 jobs \(a-1111, a-2222\); write more of the id"), ("a-111x", "did you mean a-1111")],
    ids=["two", "none"],
)
def test_an_ambiguous_job_name_is_refused_with_the_candidates(meant: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        choose_job(ROWS, meant)


def test_an_exact_name_means_the_latest_live_job_of_that_name_and_never_a_longer_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [row("a-1111", submitted=NOW), row("a-2222", submitted=NOW + 1), row("a-b-3333"), row("a-4444", ended=NOW)]
    assert choose_job(rows, "a") == "a-2222"
    assert capsys.readouterr().err.endswith("2 jobs are named a (a-1111, a-2222); this is the latest, a-2222\n")
    with pytest.raises(InputError, match=r"fits 2 jobs \(a-1111, a-2222\)"):
        choose_job(rows, "a", only=True)
    assert choose_job(rows[1:], "a", only=True) == "a-2222"


# ── queue ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_queue_shows_running_jobs_then_waiting_jobs_in_order(shoal: Shoal, cluster: Fake) -> None:
    code, out, err = shoal("queue")
    assert (code, err) == (0, "")
    title, _, _, _, *lines = (line.strip() for line in out.splitlines())
    assert title == "fifo on a100:1x8,k80:1x4: 8 of 12 GPUs in use; 2 running, 2 waiting, 1 ended"
    assert [line.split("  ")[0] for line in lines if line] == ["resnet-b7c1", "bert-k3fa", "1", "2"]
    assert cells(out, "1  ") == [
        *("1", "wide-x2f3", "nlp", "waiting", "0/8", "in 4 min (2–9)", "10 min"),
        "waits its turn: bert-k3fa is first and needs 8 GPUs where 4 are free",
    ]
    assert "running 45%" in out


def test_the_queue_of_one_tenant_and_of_what_ended(shoal: Shoal, cluster: Fake) -> None:
    assert [job["id"] for job in given(shoal, "queue", "--tenant", "vision")["jobs"]] == ["resnet-b7c1", "tail-aaaa"]
    assert [job["id"] for job in given(shoal, "queue", "--all")["jobs"]][-1] == "old-zzzz"
    assert given(shoal, "queue")["cluster"]["used_gpus"] == CLUSTER.used_gpus


def test_a_page_of_the_queue_is_shown_and_how_to_see_the_next(shoal: Shoal, cluster: Fake) -> None:
    first, second, third = (given(shoal, "queue", "--limit", "2", "--page", page) for page in ("1", "2", "3"))
    assert [job["id"] for job in first["jobs"]] == ["resnet-b7c1", "bert-k3fa"]
    assert [job["id"] for job in second["jobs"]] == ["wide-x2f3", "tail-aaaa"]
    assert ([page["more"] for page in (first, second, third)], third["jobs"]) == ([True, False, False], [])
    assert "more jobs: --page 2 shows the next 2" in shoal("queue", "--limit", "2")[1]
    assert "more jobs" not in shoal("queue")[1]


def test_a_long_listing_is_read_in_pages_of_a_thousand(shoal: Shoal, cluster: Fake) -> None:
    cluster.jobs(*(row(f"job-{number:04}", position=number) for number in range(1, 2501)))
    assert len(given(shoal, "queue", "--limit", "2400")["jobs"]) == 2400
    limits = [parse_qsl(urlsplit(path).query)[-1][1] for path in cluster.paths() if "/v1/jobs" in path]
    assert limits == ["1000", "1000", "401"]


def test_an_empty_queue_says_what_to_do(shoal: Shoal, cluster: Fake) -> None:
    cluster.jobs()
    assert "no jobs; `shoal submit -- CMD` makes one" in shoal("queue")[1]


def test_the_queue_fits_a_hundred_columns() -> None:
    from rich.console import Console

    console = Console(width=100)
    long = row("a-sweep-over-learning-rates-and-everything-else-x2f3", position=3, start=StartForecast(240, 120, 540))
    with console.capture() as captured:
        console.print(queue_command.rendered(CLUSTER, [*JOBS, long]))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= 100
    assert all(any(job.id in line for line in lines) for job in JOBS)
    assert captured.get().count("in 4 min (2–9)") == 2
    assert "…" not in captured.get()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0.4 s"), (90, "90 s"), (240, "4 min"), (5000, "83 min"), (9000, "2.5 h"), (200_000, "2.3 d")],
)
def test_a_span_is_shown_in_its_unit(seconds: float, text: str) -> None:
    assert span(seconds) == text


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        (StartForecast(240, 120, 540), "in 4 min (2–9)"),
        (StartForecast(240, 10, 7200), "in 4 min (10 s – 2 h)"),
        (StartForecast(7300, 7300, 7300), "in 2 h"),
        (StartForecast(0, 0, 3), "in 0 s (0–3)"),
    ],
)
def test_an_expected_start_has_its_spread(expected: StartForecast, text: str) -> None:
    assert spread(expected) == text


def interrupt_at(cluster: Fake, path: str, times: int, answer: Answer) -> None:
    """Press Ctrl-C when this is asked for so many times."""
    asked_for: list[Asked] = []

    def count(asked: Asked) -> Answer:
        asked_for.append(asked)
        if len(asked_for) == times:
            os.kill(os.getpid(), signal.SIGINT)
        return answer

    cluster.answers[path] = count


def test_a_watched_queue_is_drawn_again_until_ctrl_c(shoal: Shoal, cluster: Fake, monkeypatch: Any) -> None:
    monkeypatch.setattr(queue_command, "_GAP_SECONDS", 0.0)
    monkeypatch.setattr(queue_command, "_REDRAW_SECONDS", 60.0)
    monkeypatch.setattr(queue_command, "_POLL_SECONDS", 60.0)
    # Without the event the second look would be a minute away.
    cluster.answers["GET /v1/events"] = 200, b"event: board\ndata: {}\n\n"
    interrupt_at(cluster, "GET /v1/jobs", 2, (200, JOBS))
    code, out, err = shoal("queue", "--watch")
    assert (code, err.strip()) == (130, "shoal: stopped")
    assert out.count("fifo on") >= 1


def test_a_watched_queue_polls_where_the_engine_reports_no_events(
    shoal: Shoal, cluster: Fake, monkeypatch: Any
) -> None:
    monkeypatch.setattr(queue_command, "_GAP_SECONDS", 0.0)
    monkeypatch.setattr(queue_command, "_REDRAW_SECONDS", 60.0)
    monkeypatch.setattr(queue_command, "_POLL_SECONDS", 0.01)
    cluster.answers["GET /v1/events"] = 503, ProblemDetails("too many watch")
    interrupt_at(cluster, "GET /v1/jobs", 4, (200, JOBS))
    code, out, _ = shoal("queue", "--watch")
    assert code == 130
    assert out.count("fifo on") >= 3


def test_a_watched_queue_is_no_document(shoal: Shoal, cluster: Fake) -> None:
    code, _, err = shoal("queue", "--watch", "--json")
    assert (code, cluster.asked) == (2, [])
    assert "leave --watch or --json out" in err


# ── one job ──────────────────────────────────────────────────────────────────────────────────────────────────────

WIDE = detail(
    JOBS[0],
    change="asking for 4 GPUs would start it now",
    story=[Moment(NOW - 600, "submitted"), Moment(NOW - 300, "passed over: bert-k3fa was first")],
)


def test_why_says_in_one_sentence_what_holds_a_job_and_what_would_change_it(shoal: Shoal, cluster: Fake) -> None:
    cluster.jobs(WIDE)
    said = (
        "wide-x2f3 waits its turn: bert-k3fa is first and needs 8 GPUs where 4 are free; "
        "it is expected to start in 4 min (2–9); asking for 4 GPUs would start it now.\n"
    )
    assert shoal("why", "wide") == (0, said, "")
    document = given(shoal, "why", "wide")
    assert (document["decision"], document["change"]) == (WIDE.decision, WIDE.change)
    assert "story" not in document


def test_why_in_detail_tells_the_story(shoal: Shoal, cluster: Fake) -> None:
    cluster.jobs(WIDE)
    out = shoal("why", "wide", "--detail")[1]
    assert "so far 0 starts, 0 crashes, 0.00 GPU-hours" in out
    assert "+5 min  passed over: bert-k3fa was first" in out
    assert given(shoal, "why", "wide", "--detail")["story"][0]["what"] == "submitted"


def test_why_of_a_job_that_ended_says_how(shoal: Shoal, cluster: Fake) -> None:
    cluster.jobs(ended("old-zzzz", state="failed", reason="crashed 5 times, last with status 1"))
    said = "old-zzzz has ended (failed, after 9 min): crashed 5 times, last with status 1.\n"
    assert shoal("why", "old") == (0, said, "")


def test_job_shows_everything_there_is_to_say(shoal: Shoal, cluster: Fake) -> None:
    cluster.jobs(detail(JOBS[1], rate=0.9, crashes=1, incarnation=3))
    code, out, _ = shoal("job", "bert")
    assert code == 0
    shown = dict(line.split("  ", 1) for line in out.splitlines()[:-1])
    shown = {name: text.strip() for name, text in shown.items()}
    assert shown["command"] == "python train.py --name 'two words'"
    assert shown["GPUs"] == "4 a100 of 4 wanted on a100-0"
    assert shown["work done"] == "450 of 1,000 (45%), at 0.9 a second"
    assert shown["so far"] == "3 starts, 1 crash, 0.56 GPU-hours"
    assert "ended" not in shown
    assert given(shoal, "job", "bert")["incarnation"] == 3


def test_cancel_ends_jobs_and_passes_over_those_that_have_ended(shoal: Shoal, cluster: Fake) -> None:
    code, out, err = shoal("cancel", "bert", "old-zzzz", "wide", "bert-k3fa")
    assert (code, out) == (0, "cancelled bert-k3fa\ncancelled wide-x2f3\n")
    assert err == "shoal: old-zzzz had already ended (completed)\n"
    deleted = [path for path in cluster.paths() if path.startswith("DELETE")]
    assert deleted == ["DELETE /v1/jobs/bert-k3fa", "DELETE /v1/jobs/wide-x2f3"]


def test_cancel_ends_nothing_where_one_job_is_unknown(shoal: Shoal, cluster: Fake) -> None:
    assert shoal("cancel", "bert", "nobody")[0] == 2
    assert not [path for path in cluster.paths() if path.startswith("DELETE")]


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        ("hold", "held bert-k3fa; it continues to run, and is not restarted\nheld wide-x2f3\n"),
        ("release", "released bert-k3fa\nreleased wide-x2f3\n"),
        (
            "requeue",
            "put bert-k3fa back into the queue; unsaved work is lost\n"
            "put wide-x2f3 back into the queue; unsaved work is lost\n",
        ),
    ],
)
def test_a_verb_is_asked_for_each_job_once(shoal: Shoal, cluster: Fake, verb: str, said: str) -> None:
    for id in ("bert-k3fa", "wide-x2f3"):
        cluster.answers[f"POST /v1/jobs/{id}/{verb}"] = 204, None
    assert shoal(verb, "bert", "wide", "bert-k3fa")[:2] == (0, said)
    assert json.loads(shoal(verb, "wide", "--json")[1]) == {"jobs": ["wide-x2f3"]}
    assert shoal(verb, "bert", "nothing")[0] == 2, "none is changed where one is unknown"
    asked = [each.path for each in cluster.asked if each.method == "POST"]
    assert asked == [f"/v1/jobs/{id}/{verb}" for id in ("bert-k3fa", "wide-x2f3", "wide-x2f3")]


def test_priority_says_what_it_was(shoal: Shoal, cluster: Fake) -> None:
    cluster.answers["POST /v1/jobs/wide-x2f3/priority"] = 204, None
    assert shoal("priority", "wide", "3")[:2] == (0, "wide-x2f3 has priority 3, where it had 0\n")
    assert shoal("priority", "wide", "--", "-3")[0] == 0
    assert [each.body for each in cluster.asked if each.method == "POST"] == [{"priority": 3}, {"priority": -3}]


def test_priority_takes_names_or_filters_but_not_both_nor_none(shoal: Shoal, cluster: Fake) -> None:
    cluster.answers["POST /v1/priority"] = 200, Submitted(["a-aaaa", "b-bbbb"])
    assert shoal("priority", "--name", "sweep", "--", "-5")[:2] == (0, "2 jobs now have priority -5\n")
    assert json.loads(shoal("priority", "--all", "7", "--json")[1]) == {"jobs": ["a-aaaa", "b-bbbb"]}
    bodies = [each.body for each in cluster.asked if each.method == "POST"]
    assert [{k: v for k, v in body.items() if v} for body in bodies] == [
        {"name": "sweep", "priority": -5},
        {"priority": 7},
    ]
    for wrong in (("3",), ("bert", "--all", "3")):
        code, _, err = shoal("priority", *wrong)
        assert code == 2
        assert "name jobs, or give --all" in err


def test_cancel_takes_names_or_filters_but_not_both_nor_none(shoal: Shoal, cluster: Fake) -> None:
    cluster.answers["POST /v1/cancel"] = 200, Submitted(["a-aaaa", "b-bbbb"])
    assert shoal("cancel", "--name", "a", "--state", "pending")[:2] == (0, "cancelled a-aaaa\ncancelled b-bbbb\n")
    assert json.loads(shoal("cancel", "--all", "--json")[1]) == {"cancelled": ["a-aaaa", "b-bbbb"]}
    bodies = [each.body for each in cluster.asked if each.method == "POST"]
    assert [{k: v for k, v in body.items() if v} for body in bodies] == [{"name": "a", "state": "pending"}, {}]
    for wrong in ((), ("bert", "--all")):
        code, _, err = shoal("cancel", *wrong)
        assert code == 2
        assert "name jobs, or give --all" in err


def test_what_a_submitted_job_waits_for_is_found_by_name_and_sent_as_fields(shoal: Shoal, cluster: Fake) -> None:
    cluster.answers["POST /v1/jobs"] = 201, Submitted(["job-aaaa"])
    words = (
        "--after",
        "bert:any",
        "--after",
        "wide",
        "--time",
        "2h",
        "--signal",
        "USR1@5min",
        "--hold",
        "--priority",
        "4",
    )
    assert shoal("submit", *words, "--begin", "2026-11-17T08:00", "--", "true")[0] == 0
    sent = next(each.body for each in cluster.asked if each.method == "POST")
    assert sent["after"] == [{"job": "bert-k3fa", "when": "any"}, {"job": "wide-x2f3", "when": "ok"}]
    assert (sent["time"], sent["hold"], sent["priority"]) == (7200.0, True, 4)
    assert sent["signal"] == {"signal": "USR1", "before": 300.0, "main": False}
    assert sent["begin"] > 1.7e9
    for option, value in (("--time", "soon"), ("--begin", "25:00"), ("--after", "nothing")):
        assert shoal("submit", option, value, "--", "true")[0] == 2


def test_nodes_are_added_with_their_agents_line_and_removed(shoal: Shoal, cluster: Fake) -> None:
    cluster.answers["POST /v1/nodes"] = 201, NodeAdded("n9", "/home/agents/n9.token")
    code, out, _ = shoal("nodes", "add", "n9", "--kind", "a100", "--gpus", "8")
    assert code == 0
    line = f"shoal agent --server {cluster.url} --token-file /home/agents/n9.token --node n9 --kind a100 --gpus 8"
    assert out.splitlines()[0] == "added n9: 8 x a100"
    assert out.splitlines()[2].strip() == line
    cluster.answers["DELETE /v1/nodes/n9"] = 204, None
    assert json.loads(shoal("nodes", "remove", "n9", "--json")[1]) == {"removed": ["n9"]}


def test_nodes_are_drained_and_resumed_by_name_with_the_reason(shoal: Shoal, cluster: Fake) -> None:
    for node in ("n0", "n1"):
        for verb in ("drain", "resume"):
            cluster.answers[f"POST /v1/nodes/{node}/{verb}"] = 204, None
    assert shoal("nodes", "drain", "n0", "n1", "--reason", "a fan")[:2] == (0, "drained n0\ndrained n1\n")
    assert json.loads(shoal("nodes", "resume", "n0", "--json")[1]) == {"resumed": ["n0"]}
    assert shoal("nodes", "drain", "n0")[0] == 0
    assert cluster.asked[-1].body == {"reason": "no reason given"}


def test_resize_asks_for_another_gang(shoal: Shoal, cluster: Fake) -> None:
    code, out, _ = shoal("resize", "wide", "4", "--min", "2")
    assert (code, out) == (0, "wide-x2f3 now wants 4 GPUs, where it wanted 8\n")
    assert cluster.asked[-1].method == "PATCH"
    assert cluster.asked[-1].body == {"gpus": 4, "min_gpus": 2, "max_gpus": None}


# ── logs ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def printed(cluster: Fake, monkeypatch: pytest.MonkeyPatch) -> dict[int, bytes]:
    """What each incarnation of bert-k3fa printed; asked for in small pieces."""
    monkeypatch.setattr("shoal.cli.logs._MOST", 8)
    monkeypatch.setattr("shoal.cli.logs._POLL_SECONDS", 0.0)
    texts = {1: "one ¼\ntwo ½\nthree ¾\n".encode()}

    def part(asked: Asked) -> Answer:
        query = dict(pair.split("=") for pair in asked.path.partition("?")[2].split("&"))
        which, rank, offset, most = (int(query[name]) for name in ("incarnation", "rank", "offset", "most"))
        if which not in texts or rank > 0:
            return unknown("rank" if rank else "incarnation", str(rank or which))
        data = texts[which]
        found = data[offset : offset + most]
        piece, length = found.decode(errors="replace"), len(found)
        for cut in range(4):
            with suppress(UnicodeDecodeError):
                piece, length = found[: len(found) - cut].decode(), len(found) - cut
                break
        return 200, LogPart("bert-k3fa", which, rank, offset, len(data), piece, live=False, next=offset + length)

    cluster.answers["GET /v1/jobs/bert-k3fa/log"] = part
    return texts


def test_logs_are_printed_piece_by_piece(shoal: Shoal, cluster: Fake, printed: dict[int, bytes]) -> None:
    assert shoal("logs", "bert") == (0, "one ¼\ntwo ½\nthree ¾\n", "")
    assert len([path for path in cluster.paths() if "/log?" in path]) > 2
    assert given(shoal, "logs", "bert-k3fa")["text"] == "one ¼\ntwo ½\nthree ¾\n"


@pytest.mark.parametrize(("lines", "shown"), [("0", ""), ("1", "three ¾\n"), ("2", "two ½\nthree ¾\n"), ("9", None)])
def test_logs_prints_the_last_lines(shoal: Shoal, printed: dict[int, bytes], lines: str, shown: str | None) -> None:
    assert shoal("logs", "bert", "--tail", lines)[1] == (printed[1].decode() if shown is None else shown)


@pytest.mark.parametrize("most", [8, 64, 1000])
def test_the_last_lines_are_the_same_in_blocks_of_any_size(
    shoal: Shoal, printed: dict[int, bytes], monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr("shoal.cli.logs._MOST", most)
    for text in ("a\n" * 20, "¾¾¾\n" * 20, "a\nb\n\n\nc", "\n\n\n", "x" * 50, ""):
        printed[1] = text.encode()
        for lines in range(6):
            expected = "".join(text.splitlines(keepends=True)[-lines:] if lines else [])
            assert shoal("logs", "bert", "--tail", str(lines))[1] == expected, (text, lines)


def test_the_tail_of_a_log_of_one_endless_line_reads_no_more_than_its_end(
    shoal: Shoal, cluster: Fake, printed: dict[int, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.cli.logs._MOST", 1000)
    monkeypatch.setattr("shoal.cli.logs._MOST_LINE", 5000)
    printed[1] = b"first\n" + b"x" * 200_000 + b"\nlast\n"
    out = shoal("logs", "bert", "--tail", "3")[1]
    assert out.startswith("[shoal: the beginning of this line is cut]\nxxx")
    assert out.endswith("xxx\nlast\n")
    assert len(out) < 8000
    assert len([path for path in cluster.paths() if "/log?" in path]) < 25
    assert shoal("logs", "bert", "--tail", "1")[1] == "last\n"


def test_the_last_lines_are_read_across_the_place_where_a_log_was_cut(shoal: Shoal, cluster: Fake) -> None:
    head, note, tail, hole = b"one\ntwo\n", "\n[shoal: 9,000,000 bytes cut here]\n", b"three\nfour\n", 9_000_000
    asked = []

    def part(one: Asked) -> Answer:
        query = dict(pair.split("=") for pair in one.path.partition("?")[2].split("&"))
        offset, most = int(query["offset"]), int(query["most"])
        asked.append(offset)
        size, after = len(head) + hole + len(tail), len(head) + hole
        if offset < len(head):
            piece = head[offset : offset + most].decode()
            return 200, LogPart("bert-k3fa", 1, 0, offset, size, piece, live=False, next=offset + len(piece))
        if offset < after:
            return 200, LogPart("bert-k3fa", 1, 0, len(head), size, note, live=False, next=after)
        piece = tail[offset - after : offset - after + most].decode()
        return 200, LogPart("bert-k3fa", 1, 0, offset, size, piece, live=False, next=offset + len(piece))

    cluster.answers["GET /v1/jobs/bert-k3fa/log"] = part
    text = f"{head.decode()}{note}{tail.decode()}"
    assert shoal("logs", "bert")[1] == text
    for lines in range(1, 9):
        assert shoal("logs", "bert", "--tail", str(lines))[1] == "".join(text.splitlines(keepends=True)[-lines:])
    assert len(asked) < 100


def test_logs_go_on_over_restarts_and_pass_over_starts_that_printed_nowhere(
    shoal: Shoal, cluster: Fake, printed: dict[int, bytes]
) -> None:
    printed[3] = b"resumed\ndone\n"
    cluster.answers["GET /v1/jobs/bert-k3fa"] = lambda asked: (200, detail(ended("bert-k3fa"), incarnation=4))
    assert shoal("logs", "bert-k3fa")[1] == "one ¼\ntwo ½\nthree ¾\nresumed\ndone\n"
    assert shoal("logs", "bert-k3fa", "--tail", "3")[1] == "three ¾\nresumed\ndone\n"
    assert shoal("logs", "bert-k3fa", "--incarnation", "3")[1] == "resumed\ndone\n"
    assert given(shoal, "logs", "bert-k3fa")["incarnations"] == [1, 3]
    assert shoal("logs", "bert-k3fa", "--incarnation", "2")[0] == 2


def test_a_rank_that_is_not_there_is_refused(shoal: Shoal, printed: dict[int, bytes]) -> None:
    for follow in ((), ("-f",)):
        code, out, err = shoal("logs", "bert", "--rank", "7", *follow)
        assert (code, out) == (2, "")
        assert "rank: '7'" in err


@pytest.fixture
def ranks(cluster: Fake, monkeypatch: pytest.MonkeyPatch) -> list[bytes | None]:
    """What each rank of bert-k3fa printed, None where its node does not answer; asked for in small pieces."""
    monkeypatch.setattr("shoal.cli.logs._MOST", 8)
    monkeypatch.setattr("shoal.cli.logs._POLL_SECONDS", 0.0)
    logs: list[bytes | None] = [b"loss 1\nloss 2\n", b"10%\r20%\r\nno newline", b"ready\n"]

    def part(asked: Asked) -> Answer:
        query = dict(pair.split("=") for pair in asked.path.partition("?")[2].split("&"))
        rank, offset, most = (int(query[name]) for name in ("rank", "offset", "most"))
        data = logs[rank]
        if data is None:
            return 409, ProblemDetails("no answer", "job", "bert-k3fa", "its node has not answered")
        text = data[offset : offset + most].decode()
        end = offset + len(text)
        return 200, LogPart("bert-k3fa", 1, rank, offset, len(data), text, live=False, next=end, ranks=len(logs))

    cluster.answers["GET /v1/jobs/bert-k3fa/log"] = part
    return logs


LABELLED = "[0] loss 1\n[0] loss 2\n[1] 10%\r[1] 20%\r\n[1] no newline\n[2] ready\n"


def test_the_logs_of_all_ranks_are_printed_with_their_rank(
    shoal: Shoal, cluster: Fake, ranks: list[bytes | None]
) -> None:
    assert shoal("logs", "bert-k3fa")[:2] == (0, LABELLED)
    assert shoal("logs", "bert-k3fa", "--rank", "2")[1] == "ready\n"
    assert shoal("logs", "bert-k3fa", "--tail", "1")[1] == "[0] loss 2\n[1] no newline\n[2] ready\n"
    document = given(shoal, "logs", "bert-k3fa")
    assert (document["rank"], document["text"]) == (None, LABELLED)
    cluster.answers["GET /v1/jobs/bert-k3fa"] = 200, detail(ended("bert-k3fa"))
    assert sorted(shoal("logs", "-f", "bert-k3fa")[1].splitlines()) == sorted(LABELLED.splitlines())


def test_the_logs_of_other_ranks_are_printed_when_one_node_does_not_answer(
    shoal: Shoal, cluster: Fake, ranks: list[bytes | None]
) -> None:
    ranks[1] = None
    cluster.answers["GET /v1/jobs/bert-k3fa"] = 200, detail(ended("bert-k3fa"))
    for follow in ([], ["-f"]):
        code, out, err = shoal("logs", "bert-k3fa", *follow)
        assert (code, out) == (0, "[0] loss 1\n[0] loss 2\n[2] ready\n")
        assert "rank 1: job: 'bert-k3fa': its node has not answered" in err


def test_a_line_without_end_is_labelled_in_pieces(
    shoal: Shoal, monkeypatch: pytest.MonkeyPatch, ranks: list[bytes | None]
) -> None:
    monkeypatch.setattr("shoal.cli.logs._MOST_HELD", 10)
    ranks[:] = [b"x" * 40, b"y"]
    lines = shoal("logs", "bert-k3fa")[1].splitlines()
    assert "".join(line.removeprefix("[0] ") for line in lines[:-1]) == "x" * 40
    assert max(map(len, lines)) <= 10 + 8 + len("[0] ")


def test_a_job_that_has_not_started_has_no_log(shoal: Shoal, cluster: Fake) -> None:
    code, _, err = shoal("logs", "wide")
    assert code == 2
    assert "has no log, as it has not started: it waits its turn" in err


def test_following_goes_on_over_restarts_until_the_job_has_ended(
    shoal: Shoal, cluster: Fake, printed: dict[int, bytes]
) -> None:
    printed[3] = b"resumed\ndone\n"
    first = detail(JOBS[1])
    later = iter([first, detail(JOBS[1], incarnation=3), detail(JOBS[1], incarnation=3)])
    over = detail(ended("bert-k3fa"), incarnation=3)
    cluster.answers["GET /v1/jobs/bert-k3fa"] = lambda asked: (200, next(later, over))
    code, out, err = shoal("logs", "-f", "bert-k3fa", "--tail", "1")
    assert (code, out) == (0, "three ¾\nresumed\ndone\n")
    assert err.splitlines() == [
        "shoal: bert-k3fa was started again (incarnation 2)",
        "shoal: bert-k3fa was started again (incarnation 3)",
        "shoal: end of the log and of the job, completed",
    ]


def test_following_waits_for_a_job_to_start(shoal: Shoal, cluster: Fake, printed: dict[int, bytes]) -> None:
    text = printed.pop(1)
    asked: list[Asked] = []

    def grown(one: Asked) -> Answer:
        asked.append(one)
        if len(asked) < 3:
            return 200, detail(row("bert-k3fa"))
        printed[1] = text
        return 200, detail(ended("bert-k3fa"))

    cluster.answers["GET /v1/jobs/bert-k3fa"] = grown
    code, out, err = shoal("logs", "-f", "bert-k3fa")
    assert (code, out) == (0, text.decode())
    assert err.startswith("shoal: bert-k3fa has not started: it waits")


def test_following_outlives_a_restart_of_the_server(
    shoal: Shoal, cluster: Fake, printed: dict[int, bytes], monkeypatch: Any
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    log = cluster.answers["GET /v1/jobs/bert-k3fa/log"]
    assert callable(log)
    silences = [None] * 6
    cluster.answers["GET /v1/jobs/bert-k3fa/log"] = lambda asked: silences.pop() if silences else log(asked)
    cluster.jobs(ended("bert-k3fa"))
    code, out, err = shoal("logs", "-f", "bert-k3fa")
    assert (code, out) == (0, printed[1].decode())
    assert err.count("cannot reach") == 1


# ── the cluster ──────────────────────────────────────────────────────────────────────────────────────────────────

NODES = [
    NodeRow(name="a100-0", kind="a100", gpus=8, rack="r0", up=True, used=4, jobs=["bert-k3fa"], heard=NOW - 2),
    NodeRow(name="k80-0", kind="k80", gpus=4, rack="r0", up=False, used=0, jobs=[], heard=None),
]
SHARES = [
    TenantRow(tenant="nlp", live=2, held=4, gpu_seconds=7200, part_now=0.25, part_ever=0.1),
    TenantRow(tenant="vision", live=1, held=12, gpu_seconds=64_800, part_now=0.75, part_ever=0.9),
]


def taken(id: str, state: str, started: float | None, gpu_seconds: float, cause: str = "") -> AcctRow:
    return AcctRow(
        id=id,
        name=id.rpartition("-")[0],
        tenant="nlp",
        state=state,
        gpus=4,
        submitted=NOW - 600,
        started=started,
        ended=NOW - 90 if started is None else NOW - 60,
        waited=510.0 if started is None else 100.0,
        gpu_seconds=gpu_seconds,
        restarts=4,
        cause=cause,
    )


ENDED = [taken("old-zzzz", "failed", NOW - 500, 1800.0, "crashed 5 times"), taken("not-aaaa", "cancelled", None, 0.0)]


def cells(out: str, beginning: str) -> list[str]:
    (line,) = (line for line in out.splitlines() if line.strip().startswith(beginning))
    return [cell.strip() for cell in line.strip().split("  ") if cell]


def test_nodes_shows_which_nodes_answer_and_what_runs_there(shoal: Shoal, cluster: Fake) -> None:
    cluster.answers["GET /v1/nodes"] = 200, NODES
    out = shoal("nodes")[1]
    assert out.startswith("1 of 2 nodes up, 4 of 8 GPUs used\n")
    assert cells(out, "a100-0") == ["a100-0", "a100", "r0", "up", "4/8", "2 s ago", "bert-k3fa"]
    assert cells(out, "k80-0") == ["k80-0", "k80", "r0", "DOWN", "0/4", "never"]
    assert [node["up"] for node in given(shoal, "nodes")] == [True, False]


def test_queue_and_nodes_say_that_the_control_plane_is_short_of_disk(shoal: Shoal, cluster: Fake) -> None:
    said = "the control plane is short of disk: its disk has 1.0 MB free and it needs 16.0 MB"
    cluster.answers["GET /v1/nodes"] = 200, NODES
    assert "short of disk" not in shoal("queue")[1] + shoal("nodes")[1]
    cluster.answers["GET /v1/cluster"] = 200, msgspec.structs.replace(CLUSTER, short_of_disk=said)
    for command in ("queue", "nodes"):
        assert said in " ".join(shoal(command)[1].split())


def test_share_says_what_tenants_hold_and_had(shoal: Shoal, cluster: Fake) -> None:
    cluster.answers["GET /v1/share"] = 200, SHARES
    out = shoal("share")[1]
    assert cells(out, "vision") == ["vision", "1", "12", "75%", "18.00", "90%"]
    assert out.index("vision") < out.index("nlp")
    assert [tenant["held"] for tenant in given(shoal, "share")] == [4, 12]


def test_acct_says_what_ended_jobs_took_in_the_order_they_ended(shoal: Shoal, cluster: Fake) -> None:
    cluster.answers["GET /v1/acct"] = 200, ENDED
    out = shoal("acct")[1]
    assert out.startswith("2 jobs ended, 0.50 GPU-hours\n")
    assert cells(out, "old-zzzz") == [
        *("old-zzzz", "nlp", "failed", "4", "100 s", "7.3 min", "0.50", "4", "crashed 5 times")
    ]
    assert cells(out, "not-aaaa")[4:6] == ["8.5 min", "–"]
    assert [job["id"] for job in given(shoal, "acct")] == ["not-aaaa", "old-zzzz"]


def figure(mean: float, low: float, high: float) -> dict[str, float]:
    return {"mean": mean, "low": low, "high": high}


def outcome(label: str, *figures: dict[str, float]) -> dict[str, Any]:
    return {"label": label, "jobs": 4, **dict(zip(("avg_jct", "makespan", "avg_wait"), figures, strict=True))}


ANSWER = {
    "runs": [
        outcome("as it is", figure(7200, 7000, 7400), figure(36_000, 36_000, 36_000), figure(3600, 3000, 4200)),
        outcome("srtf", figure(3600, 3000, 4200), figure(39_600, 36_000, 43_200), figure(0, 0, 0)),
    ],
    "jobs": [
        {"id": "wide-x2f3", "label": "as it is", "end": figure(600, 540, 660)},
        {"id": "wide-x2f3", "label": "srtf", "end": figure(300, 240, 360)},
    ],
}


def test_whatif_compares_with_what_happens_as_it_is(shoal: Shoal, cluster: Fake, tmp_path: Path) -> None:
    cluster.answers["POST /v1/whatif"] = 200, ANSWER
    (tmp_path / "j.yaml").write_text("{command: [a], gpus: 2}")
    args = ("whatif", "--policy", "srtf", "--add", "h100:1x8", "--job", "j.yaml", "--seeds", "3")
    code, out, err = shoal(*args)
    assert (code, err) == (0, "")
    asked = cluster.asked[-1].body
    assert (asked["policies"], asked["add"], asked["seeds"]) == (["srtf"], "h100:1x8", 3)
    assert (asked["job"]["gpus"], asked["job"]["name"]) == (2, "j")
    assert cells(out, "as it is  ") == ["as it is", "4", "2 h (2–2)", "60 min (50–70)", "10 h"]
    assert cells(out, "srtf  ") == ["srtf", "4", "60 min (50–70)", "−50%", "0 s", "−100%", "11 h (10–12)", "+10%"]
    assert cells(out, "wide") == ["wide-x2f3", "10 min (9–11)", "5 min (4–6)"]
    assert given(shoal, *args) == ANSWER


def test_whatif_asks_about_one_job_at_a_time(shoal: Shoal, cluster: Fake, tmp_path: Path) -> None:
    (tmp_path / "j.yaml").write_text("[{command: [a]}, {command: [b]}]")
    code, _, err = shoal("whatif", "--job", "j.yaml")
    assert (code, cluster.asked) == (2, [])
    assert "holds 2 jobs" in err


# ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_secret_is_printed_alone_and_once(shoal: Shoal, cluster: Fake) -> None:
    cluster.answers["POST /v1/tokens"] = 200, TokenRow("ci", "user", "nlp", "s3cr3t")
    code, out, err = shoal("token", "create", "ci", "--role", "user", "--tenant", "nlp")
    assert (code, out) == (0, "s3cr3t\n")
    assert "cannot be shown again" in err
    assert cluster.asked[0].body == {"name": "ci", "role": "user", "tenant": "nlp", "node": None, "days": 400.0}


def test_tokens_are_listed_and_revoked(shoal: Shoal, cluster: Fake) -> None:
    tokens = [TokenRow("ci", "user", "nlp"), TokenRow("a100-0", "agent", None, node="a100-0")]
    cluster.answers["GET /v1/tokens"] = 200, tokens
    cluster.answers["DELETE /v1/tokens/ci"] = 200, {}
    assert cells(shoal("token", "list")[1], "ci") == ["ci", "user", "nlp"]
    assert [token["node"] for token in given(shoal, "token", "list")] == [None, "a100-0"]
    assert shoal("token", "revoke", "ci") == (0, "revoked ci\n", "")


LIVE = ("submit", "queue", "why", "job", "logs", "cancel", "resize", "nodes", "share", "acct", "whatif")


@pytest.mark.parametrize("command", LIVE)
def test_every_command_has_help_json_and_says_which_cluster(shoal: Shoal, command: str) -> None:
    code, out, _ = shoal(command, "--help")
    assert code == 0
    assert all(option in out for option in ("--json", "--server", "--token-file"))


# ── text of others ───────────────────────────────────────────────────────────────────────────────────────────────

EVIL = "\x1b]0;owned\x07\x9b2J\r\u202egnp.exe"


def evil_cluster(cluster: Fake) -> None:
    """Every text that a user, a job or an agent can choose tries to act on the terminal."""
    bad = row("evil-aaaa", reason=f"waits: {EVIL}", name=EVIL, tenant=EVIL, position=1)
    cluster.jobs(
        detail(
            bad, command=["sh", EVIL], workdir=EVIL, decision=EVIL, change=EVIL, story=[Moment(NOW, EVIL)], ranks=EVIL
        ),
        running("evil-bbbb", nodes=[EVIL], kind=EVIL, state=EVIL),
        ended("evil-cccc", reason=EVIL),
    )
    cluster.answers["GET /v1/cluster"] = 200, msgspec.structs.replace(CLUSTER, policy=EVIL, cluster=EVIL)
    cluster.answers["GET /v1/nodes"] = (
        200,
        [NodeRow(name=EVIL, kind=EVIL, gpus=1, rack=EVIL, up=True, used=0, jobs=[EVIL], heard=NOW)],
    )
    cluster.answers["GET /v1/share"] = (
        200,
        [TenantRow(tenant=EVIL, live=1, held=1, gpu_seconds=1.0, part_now=1.0, part_ever=1.0)],
    )
    cluster.answers["GET /v1/acct"] = 200, [
        AcctRow(id=EVIL, name=EVIL, tenant=EVIL, state=EVIL, gpus=1, submitted=1.0, started=2.0, ended=3.0, waited=1.0,
                gpu_seconds=1.0, restarts=0, cause=EVIL)
    ]  # fmt: skip
    cluster.answers["GET /v1/tokens"] = 200, [{"name": EVIL, "role": "user", "tenant": EVIL}]
    run = {"label": EVIL, "jobs": 1, "avg_jct": None, "avg_wait": None, "makespan": None}
    cluster.answers["POST /v1/whatif"] = 200, {"runs": [run], "jobs": [{"id": EVIL, "label": EVIL, "end": None}]}
    cluster.answers["DELETE /v1/jobs/evil-aaaa"] = 409, ProblemDetails(EVIL, EVIL, EVIL, EVIL)
    cluster.answers["PATCH /v1/jobs/evil-aaaa"] = 503, ProblemDetails(EVIL)


@pytest.mark.parametrize(
    "command",
    [
        ("queue", "--all"), ("why", "evil-aaaa", "--detail"), ("job", "evil-aaaa"), ("job", "evil-bbbb"),
        ("why", "evil-cccc"), ("nodes",), ("share",), ("acct",), ("token", "list"), ("whatif", "--policy", "fifo"),
        ("cancel", "evil-aaaa"), ("resize", "evil-aaaa", "2"), ("job", EVIL), ("logs", "evil-aaaa"),
    ],
    ids=lambda command: " ".join(command[:1]),
)  # fmt: skip
@pytest.mark.parametrize("as_json", [False, True], ids=["table", "json"])
def test_no_text_of_others_acts_on_the_terminal(
    shoal: Shoal, cluster: Fake, command: tuple[str, ...], as_json: bool
) -> None:
    evil_cluster(cluster)
    code, out, err = shoal(*command, *["--json"] * as_json)
    assert code in (0, 1, 2)
    assert out or err
    assert not [char for char in out + err if char != "\n" and not (char.isprintable() or char == "\xa0")]


def test_a_log_acts_on_a_terminal_only_if_asked_to(shoal: Shoal, cluster: Fake, monkeypatch: Any) -> None:
    text = f"\x1b[32mgreen\x1b[0m\t{EVIL}\n"
    part = LogPart("bert-k3fa", 1, 0, 0, len(text.encode()), text, False, len(text.encode()))
    cluster.answers["GET /v1/jobs/bert-k3fa/log"] = 200, part
    assert shoal("logs", "bert-k3fa")[1] == f"green\t{EVIL}\n", "a file or a pipe gets all but colours"
    assert shoal("logs", "bert-k3fa", "--raw")[1] == text
    monkeypatch.setattr("shoal.cli.output.on_terminal", lambda: True)
    shown = shoal("logs", "bert-k3fa")[1]
    assert shown == "\x1b[32mgreen\x1b[0m\t\\x1b]0;owned\\x07\\x9b2J\n\\u202egnp.exe\n\x1b[0m"
    assert shoal("logs", "bert-k3fa", "--raw")[1] == text


def test_web_prints_a_link_that_carries_a_code_and_no_token(shoal: Shoal, cluster: Fake) -> None:
    cluster.answers["POST /v1/login/code"] = 201, LoginCode("c0de", 300.0)
    code, out, err = shoal("web")
    assert (code, out) == (0, f"{cluster.url}/#code=c0de\n")
    assert "works once, within 5 minutes" in err
    assert json.loads(shoal("web", "--json")[1]) == {"url": f"{cluster.url}/#code=c0de", "seconds": 300.0}
