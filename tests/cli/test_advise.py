"""``shoal advise`` from file to table, document and page."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from shoal import simulate
from shoal.cli import main
from shoal.workload.schema import Job, Workload

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
HEADER = "JobID|JobName|Account|State|Submit|Start|End|ElapsedRaw|Timelimit|ReqTRES|AllocTRES"
CLUSTER = "a100:1x8,v100:1x4"


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(1_700_000_000 + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def jobs() -> list[Job]:
    """Thirty-six jobs of whole seconds, in bursts that fill the cluster."""
    return [
        Job(
            id=str(i),
            submitted=float(5400 * (i // 6) + 60 * i),
            gpus=(1, 2, 4, 8, 1, 4)[i % 6],
            work=float(300 + 801 * (i * i % 7)),
            declared_work=float(14400 * (1 + i % 2)),
            tenant=("vision", "<b>speech")[i % 2],
            kinds=("a100",) if i % 3 or i % 6 == 3 else ("v100",),
        )
        for i in range(36)
    ]


def as_sacct(rows: list[Job], policy: str, cluster: str) -> str:
    """The history of a cluster that runs this policy, as ``sacct -P`` prints it."""
    table = simulate(policy, Workload("w", tuple(rows)), cluster).jobs
    started = dict(zip(table.id, table.started.tolist(), strict=True))
    lines = [HEADER]
    for job in rows:
        kind, start = (job.kinds or ("a100",))[0], started[job.id]
        tres = f"cpu=8,gres/gpu={job.gpus},gres/gpu:{kind}={job.gpus}"
        times = "|".join(map(iso, (job.submitted, start, start + job.work)))
        limit = f"{int((job.declared_work or 0) // 3600)}:00:00"
        lines.append(f"{job.id}|n|{job.tenant}|COMPLETED|{times}|{job.work:.0f}|{limit}|{tres}|{tres}")
    return "\n".join(lines)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("advise") / "sacct.txt"
    path.write_text(as_sacct(jobs(), "backfill", CLUSTER))
    return path


@pytest.fixture
def advise(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command; its exit code and both streams."""

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(["advise", *map(str, arguments), "--parallel", "1"])
        said = capsys.readouterr()
        return int(left.value.code or 0), said.out, said.err

    return run


Advise = Callable[..., tuple[int, str, str]]


def document(advise: Advise, *arguments: object) -> dict[str, Any]:
    code, out, err = advise(*arguments, "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def test_on_a_cluster_that_backfills_the_simulated_baseline_is_the_record(advise: Advise, history: Path) -> None:
    found = document(advise, history, "--cluster", CLUSTER, "--policy", "las")
    assert found["calibration"]["started_within_10_min"] == 1.0
    assert found["recorded"]["figures"]["mean_wait"]["value"] > 600.0
    baseline, las = found["policies"]
    assert baseline["figures"]["mean_jct"]["value"] == pytest.approx(found["recorded"]["figures"]["mean_jct"]["value"])
    assert baseline["versus_recorded"]["mean_jct"]["high"] == pytest.approx(0.0, abs=1.0)
    assert las["versus_baseline"]["mean_stretch"]["value"] < 0.0
    assert found["waste"]["over_asked_time"] > 0.0
    assert (found["jobs"], found["compared"]) == (36, 36)


def test_by_default_eight_policies_run_on_a_cluster_derived_from_the_history(
    advise: Advise, history: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    code, out, err = advise(history, "--html", page)
    assert code == 0, err
    names = [line.split()[0] for line in out.splitlines() if line.startswith(" ") and line.split()[:1]]
    assert {"recorded", "backfill", "fifo", "srtf", "las", "tiresias", "gandiva-fair", "gavel.max-min"} <= set(names)
    assert "36 jobs on v100:1x1,a100:1x8 (the most GPUs of each kind in use at once" in out
    assert "Calibration: the simulated backfill" in out
    text = page.read_text()
    assert "http" not in text.replace("http://www.w3.org", "")
    assert "<b>speech" not in text
    assert "&lt;b&gt;speech" in text
    assert 'id="change-mean_jct"' in text


def test_policies_know_limits_and_with_oracle_true_run_times(advise: Advise, history: Path) -> None:
    limits = document(advise, history, "--policy", "srtf")
    truth = document(advise, history, "--policy", "srtf", "--oracle")
    assert "never the true run time" in limits["assumptions"][0]
    better = truth["policies"][1]["figures"]["mean_jct"]["value"]
    assert better < limits["policies"][1]["figures"]["mean_jct"]["value"]


def test_jobs_that_may_not_be_stopped_are_never_restarted(advise: Advise, history: Path) -> None:
    stopped = document(advise, history, "--policy", "las:quantum=60")["policies"][1]
    left = document(advise, history, "--policy", "las:quantum=60", "--preemptible", "no")
    assert stopped["restarts"] > 0
    assert left["policies"][1]["restarts"] == 0
    assert left["policies"][1]["unfinished"] == 0
    assert "No job is stopped" in left["assumptions"][-1]


def test_speeds_say_how_much_faster_a_kind_is(advise: Advise, tmp_path: Path) -> None:
    # One job at a time, each alone: recorded for an hour on the slow kind, it takes half an hour on the fast one.
    rows = [Job(id=str(i), submitted=36000.0 * i, gpus=1, work=3600.0, declared_work=86400.0) for i in range(8)]
    text = as_sacct(rows, "fifo", "slow:1x1").replace("gres/gpu=1,gres/gpu:a100=1", "gres/gpu=1")
    path = tmp_path / "sacct.txt"
    path.write_text(text)
    given = ("--cluster", "slow:1x1,fast:1x1", "--policy", "fifo")
    equal = document(advise, path, *given)["policies"][1]
    assert equal["figures"]["mean_jct"]["value"] == pytest.approx(3600.0)
    faster = document(advise, path, *given, "--speeds", "slow=1,fast=2")["policies"][1]
    assert faster["figures"]["mean_jct"]["value"] == pytest.approx(1800.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--policy", "lass"), "did you mean las"),
        (("--cluster", "a100"), "is not TYPE:NODESxGPUS"),
        (("--speeds", "a100=2"), "has no speed for v100"),
        (("--speeds", "a100=fast"), "write KIND=SPEED"),
        (("--html", "no/such/folder/page.html", "--policy", "fifo"), "cannot be written"),
    ],
)
def test_bad_options_are_one_line(advise: Advise, history: Path, arguments: tuple[str, ...], message: str) -> None:
    code, _, err = advise(history, *arguments)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello\n", "names no columns"),
        ("JobID|Submit|ElapsedRaw|ReqTRES\n1|2024-01-01T00:00:00|5|gres/gpu=1\n", "add the columns Start and End"),
        (
            "JobID|Submit|ElapsedRaw|ReqTRES\n1|2024-01-01T00:00:00|5|cpu=1\n",
            "holds no GPU job that ran: 1 jobs without",
        ),
    ],
)
def test_a_file_that_cannot_be_advised_on_is_one_line(advise: Advise, tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "sacct.txt"
    path.write_text(text)
    code, _, err = advise(path)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_only_the_last_days_are_used_and_odd_lines_are_counted(advise: Advise, history: Path, tmp_path: Path) -> None:
    path = tmp_path / "sacct.txt"
    path.write_text(history.read_text() + "\nodd|line\n")
    code, out, err = advise(path, "--days", "0.125", "--policy", "fifo", "--json")
    assert code == 0
    assert "skipped 1 odd lines, the first:" in err
    found = json.loads(out)
    assert found["odd_lines"] == 1
    assert 6 <= found["jobs"] <= 18


def test_philly_written_as_sacct_reads_back(advise: Advise, tmp_path: Path) -> None:
    trace = SHARED / "traces" / "philly_by_vc" / "08_ee9e8c.csv.gz"
    if not trace.is_file():
        pytest.skip("the public files are not here")
    from shoal.workload.files import read_workload

    rows = [job for job in read_workload(trace).first(150).jobs if job.work == int(job.work)]
    path = tmp_path / "sacct.txt"
    path.write_text(as_sacct(rows, "backfill", "a100:4x8"))
    found = document(advise, path, "--cluster", "a100:4x8", "--policy", "fifo")
    assert found["jobs"] == len(rows)
    assert found["calibration"]["recorded_mean_wait"] >= 0.0
