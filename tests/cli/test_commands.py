"""What each command gives: with ``--json`` one document on stdout and nothing else, messages on stderr only."""

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from shoal.policy.registry import POLICIES, find_policy, options_of, parse_policy, reasons_of
from shoal.policy.tuning import constants_of
from shoal.workload.files import read_workload
from shoal.workload.generators.registry import GENERATORS
from shoal.workload.schema import Job

Shoal = Callable[..., tuple[int, str, str]]

SIMULATE = ("simulate", "--workload", "demo", "--jobs", "12", "--cluster", "v100:2x4,k80:1x4", "--parallel", "1")

CONTRACT = {
    *("policy", "seed", "cluster", "workload", "jobs", "completed", "avg_jct", "median_jct", "p99_jct", "makespan"),
    *("utilization", "gpu_seconds", "restarts", "rho", "queueing", "decisions", "decision_seconds", "cpu_seconds"),
    "peak_rss_mb",
}
BESIDE = {"knowledge", "settings", "window", "cost", "unfinished", "deadlines", "apps"}
"""What a summary holds beside the contract: under what conditions it holds, and what it cost."""


def given(shoal: Shoal, *args: str) -> Any:
    """The one document a command prints."""
    code, out, err = shoal(*args, "--json")
    assert code == 0, err
    return json.loads(out)


def test_a_summary_has_the_keys_of_the_contract(shoal: Shoal) -> None:
    (summary,) = given(shoal, *SIMULATE, "--policy", "fifo")
    assert set(summary) == CONTRACT | BESIDE
    assert set(summary["rho"]) == {"themis", "isolated", "contention", "shockwave"}
    for figures in summary["rho"].values():
        assert set(figures) == {"mean", "max", "unfair_1.0", "unfair_1.05", "unfair_1.1"}
    assert set(summary["queueing"]) == {"mean", "p99"}
    assert set(summary["decision_seconds"]) == {"mean", "p50", "p99", "max"}
    assert (summary["policy"], summary["seed"], summary["workload"]) == ("fifo", 0, "demo")
    assert (summary["cluster"], summary["jobs"], summary["completed"]) == ("v100:2x4,k80:1x4", 12, 12)


def test_a_list_has_a_summary_for_each_policy_and_seed_in_the_order_asked_for(shoal: Shoal) -> None:
    summaries = given(shoal, *SIMULATE, "--policy", "las", "--policy", "fifo", "--seed", "3", "--seeds", "2")
    assert [(s["policy"], s["seed"]) for s in summaries] == [("las", 3), ("las", 4), ("fifo", 3), ("fifo", 4)]


def test_a_policy_asked_for_twice_runs_once(shoal: Shoal) -> None:
    assert len(given(shoal, *SIMULATE, "--policy", "fifo", "--policy", "fifo")) == 1


def test_rows_for_every_job_come_on_request(shoal: Shoal) -> None:
    (summary,) = given(shoal, *SIMULATE, "--policy", "fifo", "--per-job")
    rows = summary["jobs"]
    assert len(rows) == 12
    for row in rows:
        assert {"id", "submitted", "started", "completed", "jct", "gpus", "restarts", "rho"} <= set(row)
        assert row["submitted"] <= row["started"] <= row["completed"]
        assert row["jct"] == row["completed"] - row["submitted"]
    assert sum(row["jct"] for row in rows) / 12 == pytest.approx(summary["avg_jct"])


def test_two_jobs_in_turn_take_the_times_worked_out_by_hand(shoal: Shoal, tmp_path: Path) -> None:
    # One GPU: a runs from 0 to 100; b, submitted at 10, waits for it and runs from 100 to 150.
    (tmp_path / "two.csv").write_text("job_id,submit,duration,num_gpu\na,0,100,1\nb,10,50,1\n")
    (summary,) = given(
        shoal, "simulate", "--workload", "two.csv", "--cluster", "any:1x1", "--policy", "fifo", "--per-job"
    )
    assert [(r["id"], r["started"], r["completed"]) for r in summary["jobs"]] == [("a", 0, 100), ("b", 100, 150)]
    assert (summary["avg_jct"], summary["makespan"], summary["utilization"]) == (120, 150, 1.0)


def test_a_table_shows_what_the_document_says(shoal: Shoal) -> None:
    (summary,) = given(shoal, *SIMULATE, "--policy", "fifo")
    code, out, err = shoal(*SIMULATE, "--policy", "fifo")
    assert (code, err) == (0, "")
    assert "demo: 12 jobs on v100:2x4,k80:1x4 (12 GPUs), knowledge profiled" in out
    assert "12/12" in out
    assert f"{summary['utilization']:.1%}" in out


def test_names_with_brackets_and_colons_are_printed_as_they_are(shoal: Shoal, tmp_path: Path) -> None:
    (tmp_path / "[bold]:car:[.csv").write_text("job_id,submit,duration,num_gpu\na,0,100,1\n")
    args = ("--workload", "[bold]:car:[.csv", "--cluster", "any:1x1", "--policy", "fifo", "--out", "kept")
    code, out, _ = shoal("simulate", *args)
    assert code == 0
    assert "[bold]:car:[: 1 jobs on any:1x1" in out
    assert "[bold]:car:[ on any:1x1" in shoal("report", "kept")[1]


def test_a_wide_table_is_not_shortened_where_the_output_is_no_terminal(shoal: Shoal) -> None:
    policy = "tiresias:" + ",".join(f"{key}={_text(value)}" for key, value in _defaults("tiresias").items())
    _, out, _ = shoal(*SIMULATE, "--policy", policy)
    assert policy in out
    assert "…" not in out


def _defaults(policy: str) -> dict[str, Any]:
    return {key: default for key, (_, default) in POLICIES[policy].options().items()}


def _plain(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults as in JSON, which has no infinity and no tuples."""
    shown = {key: "inf" if default == math.inf else default for key, default in defaults.items()}
    return dict(json.loads(json.dumps(shown)))


def _text(value: object) -> str:
    return "/".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()


def test_policies_lists_every_policy_with_its_options(shoal: Shoal) -> None:
    listed = {entry["name"]: entry for entry in given(shoal, "policies")}
    assert set(listed) == set(POLICIES)
    for name, entry in listed.items():
        assert set(entry) == {"name", "summary", "paper", "options"}
        assert entry["options"] == _plain(_defaults(name))
        policy: Any = parse_policy(name)
        assert set(entry["options"]) == {f.name for f in fields(policy)}


@pytest.mark.parametrize("name", list(POLICIES))
def test_a_listed_policy_takes_its_options_as_they_are_listed(shoal: Shoal, name: str) -> None:
    spec = ",".join(f"{key}={_text(value)}" for key, value in _defaults(name).items())
    assert parse_policy(f"{name}:{spec}") == parse_policy(name)
    code, out, _ = shoal("policies")
    assert code == 0
    assert any(line.split()[0] == name for line in out.splitlines())


OWN_REASONS = f"{Path(__file__).parents[2]}/docs/examples/own_reasons.py:WideAlone"


@pytest.mark.parametrize("name", [*POLICIES, OWN_REASONS])
def test_a_policy_shows_its_options_constants_and_reasons(shoal: Shoal, name: str) -> None:
    _, policy, _ = find_policy(name)
    shown = given(shoal, "policies", name)
    assert shown["options"] == _plain({key: default for key, (_, default) in options_of(policy).items()})
    assert shown["constants"] == {key: constant._asdict() for key, constant in constants_of(policy).items()}
    assert [reason["name"] for reason in shown["reasons"]] == [reason.name for reason in reasons_of(policy)]
    code, out, _ = shoal("policies", name)
    assert code == 0
    assert out.startswith(f"{name}: {shown['summary']}\n{shown['paper']}\n")
    for key, constant in shown["constants"].items():
        assert f"\n  {key} = {constant['value']:g}: {constant['meaning']}\n" in out
    for reason in reasons_of(policy):
        assert f"\n  {reason.name}: {reason.outline}\n" in out


def test_generate_lists_every_generator(shoal: Shoal) -> None:
    assert set(given(shoal, "workload", "generate")) == set(GENERATORS)
    code, out, _ = shoal("workload", "generate")
    assert code == 0
    assert all(f"{name}:" in out for name in GENERATORS)


def test_generate_writes_a_file_and_describes_it(shoal: Shoal, tmp_path: Path) -> None:
    args = ("workload", "generate", "demo", "--jobs", "7", "--seed", "2", "--set", "elastic=0")
    description = given(shoal, *args)
    assert (description["name"], description["jobs"]) == ("demo", 7)
    code, out, err = shoal(*args, "--out", "w.jsonl", "--json")
    assert (code, json.loads(out), err) == (0, description, "shoal: wrote 7 jobs to w.jsonl\n")
    first = (tmp_path / "w.jsonl").read_bytes()
    shoal(*args, "--out", "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == first


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "parquet"])
def test_import_brings_a_file_home_unchanged(shoal: Shoal, tmp_path: Path, ending: str) -> None:
    shoal("workload", "generate", "demo", "--jobs", "30", "--out", "a.jsonl")
    code, out, err = shoal("workload", "import", "a.jsonl", "--out", f"b.{ending}", "--json")
    assert (code, json.loads(out)["jobs"], err) == (0, 30, f"shoal: wrote 30 jobs to b.{ending}\n")
    shoal("workload", "import", f"b.{ending}", "--out", "c.jsonl")
    assert (tmp_path / "c.jsonl").read_bytes() == (tmp_path / "a.jsonl").read_bytes()
    simulated = [
        given(shoal, "simulate", "--workload", w, "--cluster", "v100:2x4", "--policy", "srtf", "--per-job")[0]["jobs"]
        for w in ("a.jsonl", f"b.{ending}")
    ]
    assert simulated[0] == simulated[1]


def test_import_of_a_window_keeps_only_its_jobs(shoal: Shoal, tmp_path: Path) -> None:
    rows = "".join(f"j{i},{10 * i},5,1\n" for i in range(10))
    (tmp_path / "w.csv").write_text("job_id,submit,duration,num_gpu\n" + rows)
    assert shoal("workload", "import", "w.csv", "--window", "20:50", "--out", "w.parquet")[0] == 0
    jobs: tuple[Job, ...] = read_workload(tmp_path / "w.parquet").jobs
    assert [(job.id, job.submitted) for job in jobs] == [("j2", 0.0), ("j3", 10.0), ("j4", 20.0)]


def test_describe_counts_what_is_there(shoal: Shoal, tmp_path: Path) -> None:
    (tmp_path / "w.csv").write_text("job_id,submit,duration,num_gpu\na,0,3600,2\nb,60,7200,1\n")
    description = given(shoal, "workload", "describe", "w.csv")
    # 2 GPUs × 1 h + 1 GPU × 2 h
    assert (description["jobs"], description["gpu_hours"], description["format"]) == (2, 4.0, "simple")
    code, out, err = shoal("workload", "describe", "w.csv")
    assert (code, err) == (0, "")
    assert "w: 2 jobs (simple)" in out
    assert "4.0 GPU-hours" in out


@pytest.mark.parametrize("seeds", ["1", "3"])
def test_report_finds_no_difference_where_there_is_none(shoal: Shoal, seeds: str) -> None:
    two = ("--policy", "fifo", "--policy", "fifo:backfill=false")
    shoal(*SIMULATE, *two, "--seeds", seeds, "--out", "kept")
    (comparison,) = given(shoal, "report", "kept", "--baseline", "fifo")
    assert comparison["baseline"] == "fifo"
    assert {s["policy"] for s in comparison["standings"]} == {"fifo", "fifo:backfill=false"}
    assert comparison["differences"]
    assert {(d["policy"], d["value"], d["verdict"]) for d in comparison["differences"]} == {
        ("fifo:backfill=false", 0.0, "no difference")
    }
    code, out, _ = shoal("report", "kept")
    assert code == 0
    assert "no difference" in out
    assert "better" not in out


def test_report_writes_a_page_on_request(shoal: Shoal, tmp_path: Path) -> None:
    shoal(*SIMULATE, "--policy", "fifo", "--policy", "las", "--out", "kept")
    code, out, err = shoal("report", "kept", "--html", "page.html", "--json")
    assert (code, err) == (0, "shoal: wrote page.html\n")
    assert json.loads(out)
    assert (tmp_path / "page.html").read_text().lstrip().startswith("<!")


def test_replay_agrees_and_says_how_far_it_came(shoal: Shoal) -> None:
    (summary,) = given(shoal, *SIMULATE, "--policy", "las", "--out", "kept")
    journal = "kept/las-seed0/journal.sqlite"
    said = given(shoal, "replay", journal)
    numbers = {"records", "decisions", "events", "commands", "now"}
    assert set(said) == numbers | {"journal", "policy", "policies", "cut", "agrees"}
    assert said["policies"] == [{"policy": "las", "since": 0.0}]
    assert (said["policy"], said["decisions"], said["cut"]) == ("las", summary["decisions"], None)
    assert said["agrees"] is True
    code, out, err = shoal("replay", journal)
    assert (code, err) == (0, "")
    assert f"{said['decisions']:,} decisions of las" in out
    assert "no difference" in out


@pytest.mark.parametrize("args", [(), ("--help",), ("-h",), ("workload",), ("workload", "--help")])
def test_help_is_laid_out_on_stdout(shoal: Shoal, args: tuple[str, ...]) -> None:
    code, out, err = shoal(*args)
    assert (code, err) == (0, "")
    assert out.startswith("Usage: shoal")
    assert len(out.splitlines()) > 5


@pytest.mark.parametrize("command", ["simulate", "policies", "report", "replay", "bench", "demo"])
def test_every_command_has_help_and_json(shoal: Shoal, command: str) -> None:
    code, out, _ = shoal(command, "--help")
    assert code == 0
    assert "--json" in out


def test_version_is_the_packages(shoal: Shoal) -> None:
    from shoal import __version__

    assert shoal("--version") == (0, f"shoal, version {__version__}\n", "")


def test_a_reader_that_disconnects_causes_no_error() -> None:
    # As in `shoal policies | head -1`.
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        ended = subprocess.run([sys.executable, "-m", "shoal", "policies"], stdout=pipe, stderr=-1, check=False)
    assert ended.stderr == b""


def test_an_interrupt_says_how_to_go_on(tmp_path: Path) -> None:
    args = ("simulate", "--workload", "gavel-continuous-single", "--jobs", "4000", "--cluster", "v100:1x4")
    started = subprocess.Popen(
        [sys.executable, "-m", "shoal", *args, "--policy", "las", "--out", "kept"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / "kept" / "las-seed0" / "journal.sqlite").exists():
        assert started.poll() is None
    started.send_signal(signal.SIGINT)
    out, err = started.communicate()
    assert (started.returncode, out) == (130, "")
    assert err.strip() == "shoal: stopped; a sweep with --out goes on from here when run again"
