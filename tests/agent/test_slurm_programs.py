"""Programs of batch scripts: how tasks are spread, files named, options read, and who may start tasks on a node."""

import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent.conftest import Site, order, until

from shoal.agent.slurm.install import install
from shoal.agent.slurm.programs.channel import call, listen, welcome
from shoal.agent.slurm.programs.srun_options import parse
from shoal.agent.slurm.programs.step_layout import Slot, expand_hosts, job_tasks, plan, slots_of, spread, tasks_per_node
from shoal.agent.slurm.programs.tasks import expand

TWO = [("a", 4), ("b", 4)]


@pytest.mark.parametrize(
    ("hosts", "nodes", "seen"),
    [
        (TWO, 0, [Slot("a", 0, 0, 4), Slot("b", 1, 0, 4)]),
        (TWO, 2, [Slot("a", 0, 0, 4), Slot("b", 1, 0, 4)]),
        ([("a", 8)], 2, [Slot("a", 0, 0, 4), Slot("a", 0, 4, 4)]),
        ([("a", 4), ("b", 8)], 3, [Slot("a", 0, 0, 4), Slot("b", 1, 0, 4), Slot("b", 1, 4, 4)]),
        ([("a", 5), ("b", 3)], 2, [Slot("a", 0, 0, 5), Slot("b", 1, 0, 3)]),
        ([("a", 2), ("b", 2), ("c", 2), ("d", 2)], 2, [Slot(host, i, 0, 2) for i, host in enumerate("abcd")]),
    ],
)
def test_a_job_sees_the_nodes_it_asked_for_if_its_machines_hold_whole_ones(
    hosts: list[tuple[str, int]], nodes: int, seen: list[Slot]
) -> None:
    assert slots_of(hosts, nodes) == seen


@given(st.integers(1, 200), st.lists(st.integers(1, 16), min_size=1, max_size=12))
def test_every_task_has_a_node_and_every_node_a_task_if_there_are_enough(tasks: int, gpus: list[int]) -> None:
    counts = spread(tasks, gpus)
    assert sum(counts) == tasks
    assert min(counts) >= (tasks >= len(gpus))
    if tasks == sum(gpus):
        assert counts == gpus


@pytest.mark.parametrize(
    ("asked", "counts"),
    [
        ({"nodes": 2, "tasks": 0, "per_node": 0}, None),
        ({"nodes": 2, "tasks": 0, "per_node": 1}, [1, 1]),
        ({"nodes": 2, "tasks": 0, "per_node": 4}, [5, 3]),
        ({"nodes": 2, "tasks": 2, "per_node": 0}, [1, 1]),
        ({"nodes": 0, "tasks": 8, "per_node": 0}, [5, 3]),
    ],
)
def test_one_task_per_gpu_stays_one_task_per_gpu_on_uneven_machines(asked: dict[str, int], counts: Any) -> None:
    assert job_tasks(slots_of([("a", 5), ("b", 3)], 2), **asked) == counts


@pytest.mark.parametrize(
    ("words", "placed"),
    [
        ("", [(0, [0, 1]), (1, [2, 3])]),
        ("-N1", [(0, [0, 1])]),
        ("-n3", [(0, [0, 1]), (1, [2])]),
        ("-n1", [(0, [0])]),
        ("-w b", [(1, [0, 1])]),
        ("-r 1 -N1 -n1", [(1, [0])]),
        ("--ntasks-per-node=1", [(0, [0]), (1, [1])]),
    ],
)
def test_options_of_srun_choose_nodes_and_tasks(words: str, placed: list[tuple[int, list[int]]]) -> None:
    options = parse([*words.split(), "true"], "42")
    assert plan(options, slots_of(TWO, 2), [2, 2], {}) == placed
    assert options.command == ["true"]


def test_options_in_one_word_are_not_taken_for_those_behind_the_command() -> None:
    options = parse(["-ul", "-n4", "--gpus-per-task", "1", "--mpi=none", "--jobid=42", "-K", "python", "-n", "7"], "42")
    assert (options.given["ntasks"], options.given["gpus-per-task"], "label" in options.given) == ("4", "1", True)
    assert options.command == ["python", "-n", "7"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("-N3 true", "--nodes: 3: the job has 2"),
        ("-w c true", "--nodelist: 'c': is not a node of this job (a,b)"),
        ("-n many true", "--ntasks: 'many'"),
        ("--jobid=7 true", "steps can be started in this job only"),
        ("--mpi=pmi2 true", "there is no PMI"),
        ("--nonsense true", "--nonsense: this srun does not know the option"),
        ("-n", "-n: needs a value"),
    ],
)
def test_what_srun_cannot_do_is_refused_in_one_line(words: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        plan(parse(words.split(), "42"), slots_of(TWO, 2), None, {})
    printed = capsys.readouterr().err
    assert says in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("slurm-%j.out", "slurm-42.out"),
        ("%x_%A_%a", "job_40_7"),
        ("%4t-%%-%N", "0003-%-host"),
        ("100%", "100%"),
        ("%q%u", "%qme"),
        ("a\\%j", "a%j"),
    ],
)
def test_patterns_of_file_names_are_slurms(pattern: str, name: str) -> None:
    values = {"j": "42", "x": "job", "A": "40", "a": "7", "t": "3", "N": "host", "u": "me"}
    assert expand(pattern, values) == name


def test_host_lists_are_expanded_and_counts_written_as_slurm_does() -> None:
    assert expand_hosts("a[1-3,07],b,c[1-2]-x") == ["a1", "a2", "a3", "a07", "b", "c1-x", "c2-x"]
    assert tasks_per_node([4, 4, 3]) == "4(x2),3"
    for bad in ("a[1", "a[x]", "a[[1]]", "a]"):
        with pytest.raises(ValueError, match="brackets"):
            expand_hosts(bad)


def test_only_a_process_that_knows_the_secret_of_the_run_is_accepted() -> None:
    results: list[Any] = []

    def serve(server: socket.socket) -> None:
        for _ in range(2):
            connection, _ = server.accept()
            with connection:
                try:
                    results.append(welcome(connection, "secret").hear())
                except OSError as error:
                    results.append(str(error))

    with listen() as server:
        server.settimeout(10)
        thread = threading.Thread(target=serve, args=(server,), daemon=True)
        thread.start()
        port = server.getsockname()[1]
        with pytest.raises(ConnectionError):
            call("127.0.0.1", port, "another", time.monotonic())
        channel = call("127.0.0.1", port, "secret", time.monotonic() + 10)
        channel.tell({"node": 1})
        channel.socket.close()
        thread.join(10)
    assert results == ["the other process does not know the run's secret", {"node": 1}]


def test_programs_are_installed_once_and_readable_by_every_user(tmp_path: Path) -> None:
    folder = install(tmp_path)
    assert install(tmp_path) == folder
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    assert all(path.stat().st_mode & 0o005 == 0o005 for path in [folder, *folder.rglob("*")])
    assert {path.name for path in (folder / "bin").iterdir()} >= {"srun", "scontrol", "sbatch", "squeue", "scancel"}


# ── with an agent and its keeper ─────────────────────────────────────────────────────────────────────────────────


def batch(site: Site, phase: str, script: str, options: str = "{}", **changed: Any) -> Any:
    env = {"MARK": site.mark, "SHOAL_SBATCH": options}
    return order(phase, ["bash", "-c", script], env=env, ranks="node", **changed)


def test_a_batch_script_that_asks_to_be_requeued_ends_without_blame_and_leaves_no_process(site: Site) -> None:
    site.agent()
    site.plane.want(batch(site, "go", "srun sleep 600 & sleep 0.2; scontrol requeue; sleep 600"))
    report = site.plane.until("ended")
    assert (report.cause, report.blameless) == ("its batch script asked to be requeued", True)
    site.gone()


@pytest.mark.parametrize("output", [False, True], ids=["into the job's log", "into the script's file"])
def test_a_stop_reaches_the_tasks_of_steps_which_save_and_leave_no_process(
    site: Site, tmp_path: Path, output: bool
) -> None:
    site.agent()
    task = f"trap 'sleep 0.3; echo saving; touch {tmp_path}/saved; exit 0' TERM; touch {tmp_path}/up; sleep 600 & wait"
    script, options = f'srun bash -c "{task}"; sleep 600', json.dumps({"output": f"{tmp_path}/out"} if output else {})
    site.plane.want(batch(site, "go", script, options))
    until((tmp_path / "up").exists, "the task runs")
    site.plane.want(batch(site, "stop", script, options))
    site.plane.until("ended")
    assert (tmp_path / "saved").exists()
    assert not output or "saving" in (tmp_path / "out").read_text().splitlines()
    site.gone()


def test_options_that_are_no_json_are_refused_before_anything_starts(site: Site) -> None:
    site.agent()
    site.plane.want(order("go", ["true"], env={"SHOAL_SBATCH": "{"}, ranks="node"))
    report = site.plane.until("ended")
    assert "env.SHOAL_SBATCH" in report.cause
