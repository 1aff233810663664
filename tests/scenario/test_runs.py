"""Whole runs: the same seed gives the same journal, which replays; a sweep goes on where it stopped."""

import io
import json
import os
import pickle
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.cli import main
from shoal.core.errors import InputError
from shoal.core.printable import printable
from shoal.engine.replay import ReplayDifference
from shoal.policy.registry import POLICIES
from shoal.report.files import JOBS, JOURNAL, SUMMARY
from shoal.scenario.replay import replay_file
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import SimulationResult, run
from shoal.scenario.specs import read_cluster
from shoal.scenario.sweep import sweep, tasks
from shoal.scenario.workload_source import WorkloadSource
from shoal.store.codec import DECISION, EVENTS, checksum, unpack_raw
from shoal.workload.generators.registry import generate

MIXED = read_cluster("v100:2x4,p100:1x4,k80:1x4")
ROUGH = Scenario(MIXED, "fifo", noise=0.2, faults="node_mtbf=200000,gpu_mtbf=4000000,straggler_mtbf=200000")
"""A mixed cluster on which speeds are not as profiled, nodes are lost, jobs crash and straggle."""


def shoal(*args: str) -> tuple[int, str, str]:
    """A command line run in this process: its exit code and what it wrote."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main(args)
    assert isinstance(ended.value.code, int)
    return ended.value.code, out.getvalue(), err.getvalue()


def assert_one_line(err: str) -> None:
    assert err.startswith("shoal: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1


# ── the same again ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("policy", ["fifo", "las", "gandiva"])
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path, policy: str) -> None:
    workload = generate("demo", jobs=30)
    journals = []
    for i, seed in enumerate((5, 5, 6)):
        run(replace(ROUGH, policy=policy, seed=seed), workload, journal_path=tmp_path / f"{i}.sqlite")
        journals.append((tmp_path / f"{i}.sqlite").read_bytes())
    assert journals[0] == journals[1]
    assert journals[0] != journals[2]


@pytest.mark.parametrize("knowledge", ["oracle", "profiled", "online"])
def test_whatever_policies_know_is_named_in_the_result(tmp_path: Path, knowledge: str) -> None:
    scenario = replace(ROUGH, policy="srtf", knowledge=knowledge)
    outcome = run(scenario, generate("demo", jobs=25), journal_path=tmp_path / JOURNAL)
    assert outcome.summary["knowledge"] == knowledge
    assert outcome.summary["completed"] == 25
    assert replay_file(tmp_path / JOURNAL)[2]["knowledge"] == knowledge


def test_noise_shows_an_oracle_what_a_profile_hides() -> None:
    workload = generate("demo", jobs=40)
    noisy = replace(ROUGH, policy="srtf", noise=1.0, faults=None, cluster=read_cluster("v100:1x4"))
    journeys = {k: run(replace(noisy, knowledge=k), workload).jobs.rows() for k in ("oracle", "profiled")}
    assert journeys["oracle"] != journeys["profiled"]


@pytest.mark.parametrize("policy", list(POLICIES))
def test_every_policy_replays(tmp_path: Path, policy: str) -> None:
    path = tmp_path / JOURNAL
    outcome = run(replace(ROUGH, policy=policy, seed=1), generate("demo", jobs=25, seed=1), journal_path=path)
    derived, file, _ = replay_file(path)
    assert file.cut is None
    assert derived.decisions == outcome.summary["decisions"] > 0
    assert derived.commands > 0


# ── journals that were changed ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole journal of a few hundred records."""
    path = tmp_path_factory.mktemp("whole") / JOURNAL
    run(replace(ROUGH, policy="las"), generate("demo", jobs=30), journal_path=path)
    return path


@pytest.fixture(scope="module")
def decisions(journal: Path) -> int:
    """How many decisions the whole journal holds."""
    return replay_file(journal)[0].decisions


def tampered(journal: Path, copy: Path, seq: int, change: Any) -> None:
    """A copy in which one record says something else, under a checksum that is right."""
    copy.write_bytes(journal.read_bytes())
    connection = sqlite3.connect(copy)
    (body,) = connection.execute("SELECT body FROM record WHERE seq = ?", (seq,)).fetchone()
    raw = unpack_raw(body)
    change(raw)
    body = msgspec.msgpack.encode(raw)
    connection.execute("UPDATE record SET body = ?, crc = ? WHERE seq = ?", (body, checksum(body), seq))
    connection.commit()
    connection.close()


def records(journal: Path) -> dict[int, list[Any]]:
    connection = sqlite3.connect(journal)
    rows = connection.execute("SELECT seq, body FROM record ORDER BY seq").fetchall()
    connection.close()
    return {seq: unpack_raw(body) for seq, body in rows}


def deciding(journal: Path) -> Iterator[tuple[int, int, float]]:
    """Each decision that gave a command: its record, its number from 0, its time."""
    number, now = 0, 0.0
    for seq, raw in records(journal).items():
        if raw[0] == EVENTS:
            now = raw[1]
        elif raw[0] == DECISION:
            if raw[3]:
                yield seq, number, now
            number += 1


def other_digest(raw: list[Any]) -> None:
    raw[1] ^= 1


def other_review(raw: list[Any]) -> None:
    raw[2] = 123456789.0


def one_command_less(raw: list[Any]) -> None:
    raw[3].pop()


def another_incarnation(raw: list[Any]) -> None:
    raw[3][0][2] += 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (other_digest, "verdicts"),
        (other_review, "time of the next review"),
        (one_command_less, "commands"),
        (another_incarnation, "commands: the journal has "),
    ],
)
@pytest.mark.parametrize("which", [0, 7, -1])
def test_a_decision_that_was_changed_is_found_by_number_and_time(
    journal: Path, tmp_path: Path, which: int, change: Any, says: str
) -> None:
    seq, number, now = list(deciding(journal))[which]
    copy = tmp_path / JOURNAL
    tampered(journal, copy, seq, change)
    with pytest.raises(ReplayDifference, match=f"^decision {number} at t = {now:,.3f} s, .* differs in its {says}"):
        replay_file(copy)
    code, out, err = shoal("replay", str(copy))
    assert (code, out) == (1, "")
    assert_one_line(err)
    assert f"decision {number} at t = {now:,.3f} s" in err


def unknown_job(raw: list[Any]) -> None:
    raw[2][-1][2] = 9999


def unknown_time(raw: list[Any]) -> None:
    raw[1] = "noon"


def earlier_time(raw: list[Any]) -> None:
    raw[1] = 1.0


@pytest.mark.parametrize("change", [unknown_job, earlier_time])
def test_an_event_that_cannot_have_happened_is_refused_in_one_line(journal: Path, tmp_path: Path, change: Any) -> None:
    # The last record but one is the end of the last job.
    seq = max(records(journal)) - 1
    tampered(journal, tmp_path / JOURNAL, seq, change)
    code, out, err = shoal("replay", str(tmp_path / JOURNAL))
    assert (code, out) == (2, "")
    assert_one_line(err)


def test_a_record_without_a_time_ends_the_replay_like_a_damaged_one(journal: Path, tmp_path: Path) -> None:
    tampered(journal, tmp_path / JOURNAL, max(records(journal)) - 1, unknown_time)
    code, out, err = shoal("replay", str(tmp_path / JOURNAL))
    assert (code, "no difference" in out) == (0, True)
    assert_one_line(err)
    assert "the records before it were replayed" in err


def no_cluster(raw: list[Any]) -> None:
    del raw[2]["cluster_nodes"]


def another_policy(raw: list[Any]) -> None:
    raw[2]["policy"] = "ffo"


@pytest.mark.parametrize(("change", "code", "says"), [(no_cluster, 2, "header"), (another_policy, 2, "fifo")])
def test_a_header_that_describes_no_run_is_refused_in_one_line(
    journal: Path, tmp_path: Path, change: Any, code: int, says: str
) -> None:
    tampered(journal, tmp_path / JOURNAL, 1, change)
    ended, out, err = shoal("replay", str(tmp_path / JOURNAL))
    assert (ended, out) == (code, "")
    assert_one_line(err)
    assert says in err


def assert_honest(path: Path, whole: int) -> int:
    """Replay of a damaged journal agrees with what can be read and names the cut, or refuses it; decisions replayed."""
    code, out, err = shoal("replay", str(path), "--json")
    if code:
        assert (code, out) == (2, "")
        assert_one_line(err)
        return 0
    said = json.loads(out)
    assert said["agrees"] is True
    if said["decisions"] < whole:
        assert_one_line(err)
        assert f"cut after record {said['records']}" in err
        assert printable(said["cut"]) in err
    return int(said["decisions"])


def test_a_journal_cut_at_any_length_replays_as_far_as_it_goes(journal: Path, decisions: int, tmp_path: Path) -> None:
    data = journal.read_bytes()
    copy = tmp_path / JOURNAL
    replayed = []
    for length in range(0, len(data), 2900):
        copy.write_bytes(data[:length])
        replayed.append(assert_honest(copy, decisions))
    assert replayed == sorted(replayed)
    assert 0 == replayed[0] < replayed[len(replayed) // 2] < replayed[-1] < decisions


@given(flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=4))
@settings(max_examples=50)
def test_a_journal_with_flipped_bytes_replays_as_far_as_it_goes(
    journal: Path, decisions: int, tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[float, int]]
) -> None:
    data = bytearray(journal.read_bytes())
    for place, change in flips:
        data[int(place * len(data))] ^= change
    copy = tmp_path_factory.getbasetemp() / "flipped.sqlite"
    copy.write_bytes(data)
    assert_honest(copy, decisions)


# ── sweeps ────────────────────────────────────────────────────────────────────────────────────────────────────────

LONG = ("--workload", "gavel-continuous-single", "--jobs", "1200", "--cluster", "v100:3x4", "--noise", "0.1")
SWEEP = ("simulate", *LONG, "--policy", "srtf", "--policy", "srsf", "--parallel", "1", "--json")


def kept(folder: Path) -> dict[str, Any]:
    """What the runs in a folder say, without what was measured of the machine they ran on."""
    found: dict[str, Any] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = str(path.relative_to(folder))
        found[name] = without_measures(json.loads(path.read_bytes())) if path.name == SUMMARY else path.read_bytes()
    return found


def without_measures(summary: dict[str, Any]) -> dict[str, Any]:
    measured = ("decision_seconds", "cpu_seconds", "peak_rss_mb")
    return {key: value for key, value in summary.items() if key not in measured}


def heard(outcome: SimulationResult) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    return without_measures(dict(outcome.summary)), outcome.jobs.rows()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert shoal(*SWEEP, "--out", str(folder))[0] == 0
    return kept(folder)


def killed_when(folder: Path, moment: tuple[str, int]) -> None:
    """Start the sweep and end it with SIGKILL once a file has grown to a size."""
    name, size = moment
    watched = folder / name
    process = subprocess.Popen(
        [sys.executable, "-m", "shoal", *SWEEP, "--out", str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not (watched.exists() and watched.stat().st_size >= size):
            assert process.poll() is None, "the sweep ended before it could be killed"
    finally:
        process.kill()
        process.wait()
    assert process.returncode == -signal.SIGKILL


MOMENTS = [
    ("srtf-seed0/journal.sqlite-wal", 20_000),
    ("srtf-seed0/journal.sqlite-wal", 250_000),
    ("srsf-seed0/journal.sqlite-wal", 150_000),
]


@pytest.mark.parametrize("moment", MOMENTS, ids=["at the first commit", "later on", "in the second run"])
def test_a_killed_sweep_leaves_journals_that_replay_and_goes_on(
    tmp_path: Path, undisturbed: dict[str, Any], moment: tuple[str, int]
) -> None:
    killed_when(tmp_path, moment)
    cut = Path(moment[0]).parent
    assert not (tmp_path / cut / SUMMARY).exists()
    code, out, _ = shoal("replay", str(tmp_path / cut / JOURNAL), "--json")
    said = json.loads(out)
    assert (code, said["agrees"]) == (0, True)
    assert 0 < said["records"] < len(list(records_of(undisturbed[f"{cut}/{JOURNAL}"], tmp_path)))
    finished = [p.parent.name for p in tmp_path.rglob(SUMMARY)]
    code, out, err = shoal(*SWEEP, "--out", str(tmp_path))
    assert (code, len(json.loads(out))) == (0, 2)
    assert (f"{len(finished)} of 2 runs were already in" in err) == bool(finished)
    assert kept(tmp_path) == undisturbed


def records_of(data: bytes, folder: Path) -> dict[int, list[Any]]:
    path = folder.parent / f"{folder.name}-whole.sqlite"
    path.write_bytes(data)
    return records(path)


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for child processes in /proc")
def test_nothing_goes_on_writing_once_a_sweep_in_processes_was_killed(tmp_path: Path) -> None:
    args = ["simulate", *LONG, "--jobs", "4000", "--policy", "las", "--policy", "srtf", "--parallel", "2"]
    sweeping = subprocess.Popen(
        [sys.executable, "-m", "shoal", *args, "--out", str(tmp_path)], stderr=subprocess.DEVNULL
    )
    try:
        while len(list(tmp_path.rglob("journal.sqlite-wal"))) < 2:
            assert sweeping.poll() is None
        tasks_of = Path(f"/proc/{sweeping.pid}/task").glob("*/children")
        children = [int(child) for task in tasks_of for child in task.read_text().split()]
    finally:
        sweeping.kill()
        sweeping.wait()
    assert len(children) >= 2
    while any(map(alive, children)):  # a worker that lived on would come to write its summary
        assert not list(tmp_path.rglob(SUMMARY))


def test_a_run_whose_results_were_half_written_is_run_again(tmp_path: Path) -> None:
    todo = tasks(ROUGH, ["fifo"], [0], WorkloadSource("demo", jobs=10), tmp_path)
    sweep(todo)
    whole = kept(tmp_path)
    folder = tmp_path / "fifo-seed0"
    (folder / SUMMARY).rename(folder / f"{SUMMARY}.part")
    (folder / JOBS).write_bytes(b"PAR1")
    (again,) = sweep(todo)
    assert not again.resumed
    assert kept(tmp_path) == whole


def test_finished_runs_are_not_run_again(tmp_path: Path) -> None:
    source = WorkloadSource("demo", jobs=10)
    first = sweep(tasks(ROUGH, ["fifo"], [0, 1], source, tmp_path))
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    second = sweep(tasks(ROUGH, ["fifo", "las"], [0, 1], source, tmp_path))
    assert [f.resumed for f in first] == [False, False]
    assert [f.resumed for f in second] == [True, True, False, False]
    assert [f.outcome.summary for f in second[:2]] == [f.outcome.summary for f in first]
    assert [f.outcome.jobs.rows() for f in second[:2]] == [f.outcome.jobs.rows() for f in first]
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps


def test_runs_side_by_side_give_what_runs_in_turn_give(tmp_path: Path) -> None:
    source = WorkloadSource("demo", jobs=15)
    told: list[dict[int, int]] = []
    both = [
        sweep(
            tasks(ROUGH, ["fifo", "las"], [0, 1], source, tmp_path / str(parallel)),
            parallel=parallel,
            progress=lambda completed: told.append(dict(completed)),
        )
        for parallel in (1, 2)
    ]
    assert [heard(f.outcome) for f in both[0]] == [heard(f.outcome) for f in both[1]]
    assert kept(tmp_path / "1") == kept(tmp_path / "2")
    assert told[-1] == dict.fromkeys(range(4), 15)


def test_an_error_in_a_process_of_a_sweep_comes_home_whole(tmp_path: Path) -> None:
    wrong = replace(ROUGH, faults="node_mtb=5")
    with pytest.raises(InputError, match="'node_mtb': unknown; did you mean node_mtbf") as caught:
        sweep(tasks(wrong, ["fifo", "las"], [0], WorkloadSource("demo", jobs=5), tmp_path), parallel=2)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.field, again.where) == (str(caught.value), caught.value.field, caught.value.where)


# ── what a scenario is made of ────────────────────────────────────────────────────────────────────────────────────


def one_job(tmp_path: Path, script: str) -> dict[str, Any]:
    """A job of 100 s on one GPU of two nodes, and faults from a file."""
    (tmp_path / "one.csv").write_text("job_id,submit,duration,num_gpu\na,0,100,1\n")
    (tmp_path / "faults.yaml").write_text(script)
    args = ("--workload", str(tmp_path / "one.csv"), "--cluster", "any:2x1", "--policy", "fifo", "--restart-cost", "0")
    code, out, err = shoal("simulate", *args, "--faults", str(tmp_path / "faults.yaml"), "--per-job", "--json")
    assert (code, err) == (0, "")
    row: dict[str, Any] = json.loads(out)[0]["jobs"][0]
    return row


FAULTS = [
    # Lost at 40 without a checkpoint, it begins again on the other node and needs all its 100 s: 140.
    ("script: [{at: 40, lose: any-0, down_for: 1000}]", 140.0, 1),
    # Crashed at 35 with a checkpoint every 10 s, it is held back for 10 s, goes on from 30 and needs 70 s more: 115.
    ("checkpoint_every: 10\nscript: [{at: 35, crash: a}]", 115.0, 1),
    # At half speed from 50 to 70 it does 10 s of work instead of 20: 110.
    ("script: [{at: 50, slow: any-0, speed: 0.5, lasts: 20}]", 110.0, 0),
    # The other node is not its own.
    ("script: [{at: 0, slow: any-1, speed: 0.5, lasts: 20}, {at: 10, lose: any-1, down_for: 5}]", 100.0, 0),
]


@pytest.mark.parametrize(("script", "completed", "restarts"), FAULTS, ids=["lost", "crashed", "slow", "elsewhere"])
def test_scripted_faults_cost_what_was_worked_out_by_hand(
    tmp_path: Path, script: str, completed: float, restarts: int
) -> None:
    row = one_job(tmp_path, script)
    assert (row["completed"], row["restarts"]) == (completed, restarts)


def test_a_round_reaches_the_policies_that_have_one() -> None:
    las = Scenario(MIXED, "las", round=60.0)
    policy: Any = las.make_policy()
    assert policy.quantum == 60.0
    own: Any = replace(las, policy="las:quantum=300").make_policy()
    assert own.quantum == 300.0
    assert replace(las, policy="fifo").make_policy() == Scenario(MIXED, "fifo").make_policy()


def test_shorter_rounds_take_turns_more_often() -> None:
    workload = generate("demo", jobs=40)
    restarts = [
        run(Scenario(read_cluster("v100:1x4"), "las", round=seconds), workload).summary["restarts"]
        for seconds in (600.0, 3600.0)
    ]
    assert restarts[0] > restarts[1]


def test_racks_and_prices_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "racks:\n  left: [{type: v100, nodes: 1, gpus: 2}]\n  right: [{type: v100, nodes: 2, gpus: 2}]\n"
        "prices: {v100: 3.0}\n"
    )
    # Four GPUs fit on the two nodes of one rack; an hour of them costs 4 × 3 dollars.
    (tmp_path / "one.csv").write_text("job_id,submit,duration,num_gpu\na,0,3600,4\n")
    args = ("--workload", str(tmp_path / "one.csv"), "--cluster", str(tmp_path / "c.yaml"), "--placement", "rack")
    code, out, err = shoal("simulate", *args, "--policy", "fifo", "--out", str(tmp_path / "kept"), "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)[0]["cost"] == pytest.approx(12.0)
    path = tmp_path / "kept" / "fifo-seed0" / JOURNAL
    said = records(path)
    assert [node[3] for node in said[1][2]["cluster_nodes"]] == ["left", "right", "right"]
    starts = [command for raw in said.values() if raw[0] == DECISION for command in raw[3]]
    assert [start[3] for start in starts] == [[[1, 2], [2, 2]]]
    assert replay_file(path)[0].decisions > 0


def test_a_journal_replays_wherever_it_is_moved(journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = tmp_path / "a folder with spaces, ünd ?mode=rwc#" / JOURNAL
    moved.parent.mkdir()
    moved.write_bytes(journal.read_bytes())
    os.chmod(moved, 0o400)
    monkeypatch.chdir(moved.parent)
    assert shoal("replay", JOURNAL)[0] == 0
    assert [p.name for p in moved.parent.iterdir()] == [JOURNAL]
