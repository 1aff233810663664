"""Real agents, keepers and jobs under a control plane that says what the test wants."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.agent.conftest import Site, keeper_of, order, server_of, token_file, until

from shoal.agent.processes import find_process
from shoal.agent.workspace import MOST_LOG_BYTES
from shoal.wire.messages import LogRead, ProblemDetails, RunOrder

PYTHON = [sys.executable, "-I", "-S", "-c"]

WAIT = "import time; time.sleep(600)"

TELL = """
import json, os, time
folder, rank = os.environ["SHOAL_DIR"], os.environ["RANK"]
fds = sorted(int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}"))
told = {"env": dict(os.environ), "cwd": os.getcwd(), "fds": fds, "stdin": os.readlink("/proc/self/fd/0")}
if rank == "3":
    progress = os.environ["SHOAL_PROGRESS"]
    with open(progress + ".new", "w") as file:
        file.write("120.5 100")
    os.replace(progress + ".new", progress)
print("hello from", rank, flush=True)
with open(f"{folder}/{rank}.part", "w") as file:
    json.dump(told, file)
os.replace(f"{folder}/{rank}.part", f"{folder}/{rank}.json")
time.sleep(600)
"""

SAVE = """
import os, signal, sys, time
def save(*_):
    open(os.environ["SHOAL_DIR"] + "/saved", "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
open(os.environ["SHOAL_DIR"] + "/up", "w").close()
time.sleep(600)
"""

DEAF = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(os.environ["SHOAL_DIR"] + "/up", "w").close()
time.sleep(600)
"""

# A daemon as one should not write them in a job: its own session, no parent, deaf to warnings.
LEAVE = """
import os, signal, sys, time
def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            open(os.environ["SHOAL_DIR"] + "/daemon" + os.environ["RANK"], "w").write(str(os.getpid()))
            time.sleep(600)
        os._exit(0)
    os.wait()
"""


@pytest.fixture
def ask(site: Site) -> Any:
    """Orders of marked jobs that run a piece of Python."""

    def make(phase: str, source: str, **other: Any) -> RunOrder:
        return order(phase, [*PYTHON, source], **{"env": {"MARK": site.mark}, **other})

    return make


def file(site: Site, name: str, job: int = 1) -> Path:
    path = site.home / "jobs" / f"job-{job}" / name
    until(path.exists, f"the job writes {name}")
    return path


def daemon(site: Site, rank: int) -> int:
    path = file(site, f"daemon{rank}")
    return int(until(path.read_text, "the daemon has written its number"))


def until_said(agent: subprocess.Popen[str], event: str) -> None:
    assert agent.stderr is not None
    assert any(event in line for line in agent.stderr)


def living(pid: int) -> bool:
    process = find_process(pid)
    return process is not None and process.state != "Z"


def test_a_gang_starts_with_its_environment_its_logs_and_nothing_of_the_operators(
    site: Site, ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,9,GPU-5e,6,7")  # GPU 4 is a stranger's
    site.plane.lease = 6.0
    site.agent("--first-device", "4", gpus=4)
    ready = ask("prepare", TELL, gpus=2, local_ranks=2, first_rank=3, world=5, node_rank=1, nodes=2, master="10.0.0.7")
    site.plane.want(ready)
    assert site.plane.until("ready").port > 0
    assert not site.alive(), "being ready starts nothing"
    go = ask(
        "go", TELL, gpus=2, local_ranks=2, first_rank=3, world=5, node_rank=1, nodes=2, master="10.0.0.7", port=4242
    )
    site.plane.want(go)
    site.plane.until("running")
    for local, rank in enumerate((3, 4)):
        told = json.loads(file(site, f"{rank}.json").read_text())
        expected = {
            "SHOAL_JOB": "job-1",
            "SHOAL_INCARNATION": "1",
            "SHOAL_DIR": str(site.home / "jobs" / "job-1"),
            "RANK": str(rank),
            "LOCAL_RANK": str(local),
            "WORLD_SIZE": "5",
            "LOCAL_WORLD_SIZE": "2",
            "NODE_RANK": "1",
            "GROUP_RANK": "1",
            "MASTER_ADDR": "10.0.0.7",
            "MASTER_PORT": "4242",
            "CUDA_VISIBLE_DEVICES": "9,GPU-5e",
            "PATH": os.environ["PATH"],
        }
        assert expected.items() <= told["env"].items()
        assert "SHOAL_TOKEN" not in told["env"]
        assert "AWS_SECRET" not in told["env"]
        assert told["cwd"] == str(site.home / "jobs" / "job-1")
        assert told["fds"] == [0, 1, 2]
        assert told["stdin"] == "/dev/null"
    log = site.home / "nodes" / "node-a" / "logs" / "job-1" / "1.4.log"
    assert log.read_text() == "hello from 4\n"
    assert log.stat().st_mode & 0o777 == 0o600
    until(lambda: (run := site.plane.run()) and (run.done, run.saved) == (120.5, 100.0), "progress is reported")


def test_a_log_is_read_in_pieces_that_are_bounded(site: Site, ask: Any) -> None:
    site.agent()
    site.plane.want(ask("go", f"print('x' * {MOST_LOG_BYTES}, end='END')"))
    assert site.plane.until("ended").exits[0].status == 0
    whole = site.plane.read(LogRead(1, "job-1", 1, 0, 0, 2**40))
    assert (whole.size, whole.data) == (MOST_LOG_BYTES + 3, b"x" * MOST_LOG_BYTES)
    assert site.plane.read(LogRead(2, "job-1", 1, 0, MOST_LOG_BYTES, 100)).data == b"END"
    assert site.plane.read(LogRead(3, "../../lock", 1, 0, 0, 100)).size == -1


def test_a_log_beyond_the_agents_bound_is_cut_in_its_middle_and_says_so(site: Site, ask: Any) -> None:
    site.agent("--log-bytes", "1000000")
    site.plane.want(ask("go", "for n in range(500_000): print(f'{n:09d}')"))
    assert site.plane.until("ended").exits[0].status == 0
    (log,) = (site.home / "nodes" / "node-a" / "logs" / "job-1").iterdir()
    assert (log.stat().st_size, log.stat().st_blocks * 512 < 1_100_000) == (5_000_000, True)
    answer = site.plane.read(LogRead(1, "job-1", 1, 0, 2_000_000, 100))
    assert b" bytes cut here]" in answer.data
    assert answer.next is not None
    rest = site.plane.read(LogRead(2, "job-1", 1, 0, 4_999_990, 100))
    assert (rest.data, answer.next > 4_000_000) == (b"000499999\n", True)
    assert (site.plane.reports[-1].disk_free or 0) > 0


def test_a_warned_job_may_save_and_one_that_does_not_listen_is_killed(site: Site, ask: Any) -> None:
    site.agent()
    site.plane.want(ask("go", SAVE), ask("go", DEAF, job=2))
    file(site, "up")
    file(site, "up", job=2)
    site.plane.want(ask("stop", SAVE), ask("stop", DEAF, job=2, grace=0.2))
    assert [(end.rank, end.status) for end in site.plane.until("ended").exits] == [(0, 0)]
    assert file(site, "saved").exists()
    assert [(end.rank, end.status) for end in site.plane.until("ended", 2).exits] == [(0, -signal.SIGKILL)]
    site.gone()
    site.plane.want()
    until(lambda: site.plane.reports[-1].runs == [], "what is no longer ordered is forgotten")
    assert not list((site.home / "nodes" / "node-a" / "runs").iterdir())


def test_what_a_rank_leaves_behind_is_killed_when_it_ends_and_not_before(site: Site, ask: Any) -> None:
    site.agent()
    source = LEAVE + "daemon()\nfolder = os.environ['SHOAL_DIR']\n"
    source += "while os.environ['RANK'] == '1' or not os.path.exists(folder + '/end'): time.sleep(0.01)\n"
    site.plane.want(ask("go", source, gpus=2, local_ranks=2, world=2))
    daemons = [daemon(site, rank) for rank in (0, 1)]
    assert set(daemons) < set(site.alive())
    (site.home / "jobs" / "job-1" / "end").touch()
    until(lambda: not living(daemons[0]), "the daemon of the rank that ended is gone")
    run = until(lambda: (run := site.plane.run()) and run.exits and run, "the end of a rank is told")
    assert run.phase == "running"
    assert {environ["RANK"] for environ in site.alive().values()} == {"1"}
    assert daemons[1] in site.alive()
    site.plane.want(ask("stop", source, gpus=2, local_ranks=2, world=2))
    site.plane.until("ended")
    assert not site.alive()


def test_a_rank_that_fails_ends_the_others(site: Site, ask: Any) -> None:
    site.agent()
    source = "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(3)\ntime.sleep(600)"
    site.plane.want(ask("go", source, gpus=2, local_ranks=2, world=2))
    report = site.plane.until("ended")
    assert [(end.rank, end.status) for end in report.exits] == [(1, 3), (0, -signal.SIGTERM)]
    assert (report.cause, report.blameless) == ("", False)


@pytest.mark.parametrize("victim", ["agent", "keeper"])
def test_sigkill_leaves_no_process(site: Site, ask: Any, victim: str) -> None:
    agent = site.agent()
    site.plane.want(ask("go", LEAVE + "daemon()\n" + DEAF))
    site.plane.until("running")
    file(site, "daemon0")
    file(site, "up")
    assert len(site.alive()) == 2
    keeper = keeper_of(site)
    os.kill(agent.pid if victim == "agent" else keeper, signal.SIGKILL)
    site.gone()
    until(lambda: not living(keeper), "the keeper is gone")
    if victim == "keeper":
        report = site.plane.until("ended")
        assert "keeper died" in report.cause
        assert report.blameless
        site.plane.want(ask("go", "pass", job=2, gpus=2))
        assert site.plane.until("ended", 2).exits[0].status == 0


def test_an_agent_that_hangs_cannot_prolong_a_lease(site: Site, ask: Any) -> None:
    site.plane.lease = 3.0
    agent = site.agent()
    site.plane.want(ask("go", SAVE))
    file(site, "up")
    agent.send_signal(signal.SIGSTOP)
    site.gone()
    assert file(site, "saved").exists(), "a lease ends with a warning"
    agent.send_signal(signal.SIGCONT)
    report = site.plane.until("ended")
    assert "lease ended" in report.cause
    assert report.blameless


def test_a_job_goes_on_while_the_control_plane_is_away(site: Site, ask: Any) -> None:
    agent = site.agent()
    site.plane.want(ask("go", WAIT))
    site.plane.until("running")
    (pid,) = site.alive()
    site.plane.close()
    site.plane.reports.clear()
    until_said(agent, "control plane away")
    site.plane.open()
    site.plane.until("running")
    assert list(site.alive()) == [pid]
    assert len(site.plane.hellos) == 1
    site.plane.want(ask("stop", WAIT))
    assert site.plane.until("ended").exits[0].status == -signal.SIGTERM


def test_an_agent_that_is_no_longer_known_introduces_itself_again_and_keeps_its_jobs(site: Site, ask: Any) -> None:
    site.agent()
    site.plane.want(ask("go", WAIT))
    site.plane.until("running")
    (pid,) = site.alive()
    site.plane.forget()
    until(lambda: len(site.plane.hellos) == 2, "the agent says hello again")
    assert site.plane.hellos[0] == site.plane.hellos[1]
    site.plane.want(ask("go", WAIT), ask("go", "", job=2))
    site.plane.until("ended", 2)
    assert list(site.alive()) == [pid]


UNSTARTABLE = {
    "no such program": (["no-such-program"], "no such program on the job's PATH"),
    "no such file": (["/no/such/file"], "no such program in"),
    "a folder": (["{home}"], "is a folder on this node; name the program to run, or a file in it"),
    "not executable": (["{home}/plain"], "not executable"),
    "no such interpreter": (["{home}/orphan"], "the interpreter its first line names does not exist"),
    "not a program": (["{home}/garbage"], "not a program; begin it with a #! line"),
}


def test_a_program_that_cannot_be_executed_is_reported_in_a_sentence(site: Site) -> None:
    site.home.mkdir()
    for name, text, mode in (("plain", "", 0o600), ("orphan", "#!/no/such/sh\n", 0o700), ("garbage", "?", 0o700)):
        (site.home / name).write_text(text)
        (site.home / name).chmod(mode)
    site.agent()
    runs = [
        order("go", [command[0].format(home=site.home)], job=job, gpus=2, local_ranks=2)
        for job, (command, _) in enumerate(UNSTARTABLE.values())
    ]
    site.plane.want(*runs)
    for job, (name, (_, sentence)) in enumerate(UNSTARTABLE.items()):
        report = site.plane.until("ended", job)
        assert sentence in report.cause, name
        assert not report.blameless


def test_a_working_directory_outside_the_roots_is_refused(site: Site, ask: Any, tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root / "inside", outside):
        folder.mkdir(parents=True)
    (root / "link").symlink_to(outside)
    site.agent("--root", str(root))
    workdirs = [str(root / "inside"), str(root / "link"), str(root / ".." / "outside"), str(root / "none"), "../job-9"]
    site.plane.want(*(ask("go", "", job=job, workdir=workdir) for job, workdir in enumerate(workdirs)))
    causes = [site.plane.until("ended", job).cause for job in range(len(workdirs))]
    assert causes[0] == ""
    for job in (1, 2, 4):
        assert "outside the folders its agent allows" in causes[job]
        assert str(root) in causes[job]
        assert workdirs[job] in causes[job]
    assert "not a directory" in causes[3]


@pytest.mark.parametrize("keeper_is", ["stopped", "killed"])
def test_a_restarted_agent_says_hello_only_when_nothing_of_the_last_one_lives(
    site: Site, ask: Any, keeper_is: str
) -> None:
    first = site.agent()
    site.plane.want(ask("go", LEAVE + "daemon()\n" + DEAF))
    site.plane.until("running")
    file(site, "up")
    keeper = keeper_of(site)
    os.kill(keeper, signal.SIGSTOP)  # it will not notice that its agent has died
    first.kill()
    first.wait()
    if keeper_is == "killed":
        os.kill(server_of(site), signal.SIGKILL)
        until(lambda: len(site.alive()) == 1, "the rank dies with its keeper, its daemon is left")
    site.plane.want()
    assert site.alive()
    site.agent()
    until(lambda: len(site.plane.hellos) == 2, "the new agent says hello")
    assert not site.alive()
    assert not living(keeper)
    assert site.plane.hellos[0].boot != site.plane.hellos[1].boot


def test_an_agent_ordered_to_end_lets_jobs_save_then_reports_and_exits(site: Site, ask: Any) -> None:
    agent = site.agent()
    site.plane.want(ask("go", SAVE), ask("go", WAIT, job=2, gpus=2))
    file(site, "up")
    agent.terminate()
    assert agent.wait() == 0
    site.gone()
    assert file(site, "saved").exists()
    # Not the last that was heard: an earlier report, sent by another thread, may come after it.
    assert site.plane.reports[-1].leaving == 0.0
    ends = [run for report in site.plane.reports for run in report.runs if (run.job, run.phase) == (1, "ended")]
    assert {(run.blameless, run.cause) for run in ends} == {(True, "its node's agent was stopped")}


def test_a_rank_that_leaves_at_the_signal_that_also_ends_its_agent_counts_as_warned(site: Site, ask: Any) -> None:
    """As Slurm ends an allocation: it signals all its processes at once, and the rank is gone first."""
    agent = site.agent()
    site.plane.want(ask("go", SAVE))
    site.plane.until("running")
    file(site, "up")
    (rank,) = site.alive()
    agent.send_signal(signal.SIGSTOP)
    os.kill(rank, signal.SIGTERM)
    until(lambda: not living(rank), "the rank leaves")
    agent.send_signal(signal.SIGTERM)
    agent.send_signal(signal.SIGCONT)
    (end,) = site.plane.until("ended").exits
    assert (end.status, end.warned) == (0, True)


def test_a_second_signal_ends_an_agent_at_once(site: Site, ask: Any) -> None:
    agent = site.agent()
    site.plane.want(ask("go", DEAF, grace=3600.0))
    file(site, "up")
    agent.terminate()
    until_said(agent, "agent ending")
    until(lambda: any(report.leaving == 3600.0 for report in site.plane.reports), "it says that it is leaving")
    agent.terminate()  # an engine may send it to a job and again to its processes
    time.sleep(0.2)
    assert len(site.alive()) == 1
    agent.send_signal(signal.SIGINT)
    assert agent.wait() == 0
    site.gone()


@pytest.mark.parametrize(
    ("status", "problem", "line"),
    [
        (
            404,
            ProblemDetails("", "node", "node-a", "unknown; known are n1, n2"),
            "node: 'node-a': unknown; known are n1, n2",
        ),
        (409, ProblemDetails("", "gpus", 2, "the cluster file says 4"), "gpus: 2: the cluster file says 4"),
        (401, ProblemDetails("no such token"), "no such token"),
    ],
)
def test_an_agent_that_is_turned_away_says_why_and_ends(
    site: Site, status: int, problem: ProblemDetails, line: str
) -> None:
    site.plane.refusal = (status, problem)
    agent = site.agent()
    assert agent.wait() == 2
    assert agent.stderr is not None
    plain = [text for text in agent.stderr.read().splitlines() if not text.startswith("{")]
    assert plain == [f"shoal agent: {line}"]


def test_an_agent_outlives_a_time_in_which_its_token_is_refused(site: Site) -> None:
    site.plane.lease = 3.0
    agent = site.agent()
    site.plane.want(order("go", ["sleep", "600"]))
    site.plane.until("running")
    site.plane.refusal = (401, ProblemDetails("the token expired"))
    assert agent.stderr is not None
    lines = iter(agent.stderr.readline, "")
    assert any("the token expired" in line for line in lines), "the agent was refused"
    site.plane.refusal = None
    site.plane.want(order("go", ["true"], job=2))
    assert site.plane.until("ended", 2).finished
    assert len(site.plane.hellos) == 1
    assert agent.poll() is None


def test_settings_that_cannot_be_are_named(site: Site, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.touch()
    cases = {
        ("--gpus", "0"): "shoal agent: gpus: 0: ",
        ("--node", "../x"): "shoal agent: node: '../x': ",
        ("--home", str(plain)): f"shoal agent: home: '{plain}': ",
        ("--server", "nowhere"): "shoal agent: server: 'nowhere': ",
        ("--server", "https://localhost", "--cafile", "/no/such"): "shoal agent: cafile: '/no/such': ",
    }
    agents = [site.agent(*options) for options in cases]
    for agent, line in zip(agents, cases.values(), strict=True):
        assert agent.wait() == 2
        assert agent.stderr is not None
        said = agent.stderr.read()
        assert said.startswith(line)
        assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "environ", "line"),
    [
        (["--token-file", "/no/such"], {}, "token-file: '/no/such': cannot be read: No such file"),
        (["--token-file", "/dev/null"], {}, "token: None: name a --token-file"),
        (["--token-fd", "99"], {}, "token-fd: 99: cannot be read: Bad file descriptor"),
        ([], {"SHOAL_TOKEN": "secret"}, "SHOAL_TOKEN: '…': an agent takes no token from its environment"),
    ],
)
def test_an_agent_takes_its_token_from_a_file_or_a_descriptor_only(
    options: list[str], environ: dict[str, str], line: str
) -> None:
    command = [sys.executable, "-m", "shoal.agent", "--server", "http://127.0.0.1:1", *options]
    environ = {**os.environ, **environ}
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert ended.stderr.startswith(f"shoal agent: {line}")


def test_two_agents_cannot_serve_one_node(site: Site) -> None:
    first = site.agent()
    until(lambda: site.plane.hellos, "the first agent is up")
    second = site.agent()
    assert second.wait() == 2
    assert second.stderr is not None
    assert f"another agent (process {first.pid}) serves this folder" in second.stderr.read()
    assert len(site.plane.hellos) == 1


def test_an_agent_waits_for_a_control_plane_that_is_not_there_yet(site: Site) -> None:
    site.plane.close()
    agent = site.agent()
    until_said(agent, "control plane away")
    site.plane.open()
    until(lambda: site.plane.hellos, "it says hello")


def test_an_agent_may_end_with_the_process_that_started_it(site: Site, ask: Any) -> None:
    command = [sys.executable, "-m", "shoal.agent", "--server", f"http://127.0.0.1:{site.plane.port}", "--node", "n"]
    command += ["--kind", "v100", "--gpus", "1", "--home", str(site.home)]
    command += ["--token-file", str(token_file(site.home.parent)), "--parent"]
    source = f"import os, subprocess, time; subprocess.Popen([*{command!r}, str(os.getpid())]); time.sleep(600)"
    environ = {**os.environ, "MARK": site.mark}
    parent = subprocess.Popen([sys.executable, "-c", source], env=environ, stderr=subprocess.DEVNULL)
    site.plane.want(ask("go", SAVE))
    file(site, "up")
    parent.kill()
    parent.wait()
    site.gone()
    assert file(site, "saved").exists()


def test_an_agent_whose_parent_died_while_it_was_starting_ends_too(site: Site) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    command = [sys.executable, "-m", "shoal.agent", "--server", f"http://127.0.0.1:{site.plane.port}", "--node", "n"]
    command += ["--kind", "v100", "--gpus", "1", "--home", str(site.home), "--parent", str(gone.pid)]
    command += ["--token-file", str(token_file(site.home.parent))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "agent down" in ended.stderr


def test_the_agent_imports_nothing_heavy() -> None:
    source = "import sys, shoal.agent.node_agent; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout.split()
    assert "shoal.wire.client" in loaded
    assert not {"numpy", "scipy", "click", "yaml", "rich", "starlette", "pyarrow"} & set(loaded)
