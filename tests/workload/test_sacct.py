"""Slurm's history in every form that ``sacct`` prints: which jobs come out, what is left out, and what is refused."""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal.cli import main
from shoal.core.errors import InputError
from shoal.workload.files import read_workload, to_jsonl
from shoal.workload.importers.rows import Source
from shoal.workload.importers.sacct import RecordedHistory, read_history
from shoal.workload.importers.slurm_fields import expand_nodes, gres_gpus, kind_in, span, state_of
from shoal.workload.schema import Workload

Reading = Callable[..., Workload]


def rows(workload: Workload) -> list[dict[str, Any]]:
    """The jobs with the fields that are not at their defaults."""
    return [msgspec.json.decode(line, type=dict[str, Any]) for line in to_jsonl(workload).splitlines()]


@pytest.fixture
def history(tmp_path: Path) -> Callable[..., RecordedHistory]:
    """Write text and read it as Slurm's history."""

    def read(text: str, columns: tuple[str, ...] | None = None) -> RecordedHistory:
        path = tmp_path / "history.txt"
        path.write_text(text, encoding="utf-8")
        return read_history(Source(path), columns)

    return read


SACCT = """JobID|Submit|ElapsedRaw|AllocTRES|ReqTRES|Account|State|Timelimit
100|2024-01-01T00:01:00|3600|billing=8,cpu=8,gres/gpu=4,gres/gpu:a100=4,node=1|cpu=8,gres/gpu:a100=4|vision|COMPLETED|1-00:00:00
100.batch|2024-01-01T00:01:00|3600|cpu=8,gres/gpu=4|||COMPLETED|
101_7|2024-01-01T00:00:00|30|gres/gpu:h100=2,gres/gpu:a100=1|gres/gpu=3||FAILED|UNLIMITED
102|2024-01-01T00:02:00|50|cpu=8|cpu=8|vision|COMPLETED|01:00:00
103|2024-01-01T00:03:00|0||gres/gpu=1|vision|PENDING|01:00:00
104|2024-01-01T00:03:00|50|gres/gpu=1|gres/gpu=1|vision|RUNNING|01:00:00
105|2024-01-01T00:03:00|0||gres/gpu=1|vision|CANCELLED by 12|01:00:00
"""


def test_sacct_reads_gpus_limits_and_arrays(reading: Reading) -> None:
    workload = reading(SACCT, "history.txt")
    assert rows(workload) == [
        {"id": "101_7", "submitted": 0.0, "gpus": 3, "work": 30.0, "declares_work": False, "app": "101"},
        {
            "id": "100",
            "submitted": 60.0,
            "gpus": 4,
            "work": 3600.0,
            "declared_work": 86400.0,
            "tenant": "vision",
            "kinds": ["a100"],
        },
    ]
    assert dict(workload.left_out) == {
        "steps of jobs": 1,
        "jobs without a GPU": 1,
        "jobs that have not ended": 2,
        "jobs that never ran": 1,
    }


def test_sacct_takes_elapsed_or_start_and_end_and_a_closing_bar(reading: Reading) -> None:
    elapsed = "JobID|Submit|Elapsed|ReqTRES|User|\n1|2024-01-01T00:00:00|1-02:03:04|gres/gpu=1|ann|\n"
    between = (
        "JobID|Submit|Start|End|ReqTRES\n"
        "1|2024-01-01T00:00:00|2024-01-01T00:00:05|2024-01-02T02:03:09|gres/gpu=1\n"
        "2|2024-01-01T00:00:00|Unknown|Unknown|gres/gpu=1\n"
    )
    (first,) = reading(elapsed, "a.txt").jobs
    (second,) = reading(between, "b.txt").jobs
    assert first.work == second.work == 93784.0
    assert (first.tenant, second.tenant) == ("ann", "default")
    assert first.spec().work == 93784.0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("|3600|billing", "|soon|billing", ":2: ElapsedRaw: 'soon': is not a number"),
        ("1-00:00:00", "a day", ":2: Timelimit: 'a day': is not a span of time"),
        ("2024-01-01T00:01:00|3600|b", "Unknown|3600|b", ":2: Submit: 'Unknown': is not a time"),
        ("gres/gpu=4,gres/gpu:a100=4,node", "gres/gpu=four,node", "'gres/gpu=four' is not gres/gpu=N"),
    ],
)
def test_a_broken_sacct_line_is_skipped_and_named(reading: Reading, old: str, new: str, message: str) -> None:
    assert old in SACCT
    workload = reading(SACCT.replace(old, new, 1), "history.txt")
    assert [job.id for job in workload.jobs] == ["101_7"]
    assert message in workload.skipped[0]


@pytest.mark.parametrize(
    ("text", "seconds"), [("05:06", 306.0), ("01:05:06", 3906.0), ("2-00:00:01", 172801.0), ("00:01.500", 1.5)]
)
def test_slurm_spans(text: str, seconds: float) -> None:
    assert span("Elapsed", text) == seconds


NAMES = "JobID,JobName,Account,Partition,State,Submit,Start,End,Elapsed,Timelimit,ReqTRES,AllocTRES"
TABLE = [
    ["7", "a|b", "vision", "gpu", "COMPLETED", "2024-01-01T00:00:00", "2024-01-01T00:01:00", "2024-01-01T01:01:00",
     "01:00:00", "02:00:00", "cpu=8,gres/gpu:a100=4", "cpu=8,gres/gpu=4,gres/gpu:a100=4"],
    ["7.batch", "batch", "vision", "", "COMPLETED", "2024-01-01T00:01:00", "2024-01-01T00:01:00", "2024-01-01T01:01:00",
     "01:00:00", "", "", "cpu=8,gres/gpu=4"],
    ["8_3", "sweep", "", "gpu", "CANCELLED by 1000", "2024-01-01T00:00:30", "2024-01-01T00:02:00",
     "2024-01-02T00:02:00", "1-00:00:00", "UNLIMITED", "gres/gpu=1", "gres/gpu=1"],
    ["8_[4-9%2]", "sweep", "", "gpu", "PENDING", "2024-01-01T00:00:30", "Unknown", "Unknown", "00:00:00", "UNLIMITED",
     "gres/gpu=1", ""],
    ["9+0", "het", "nlp", "gpu", "TIMEOUT", "2024-01-01T00:00:40", "2024-01-01T00:02:00", "2024-01-01T00:12:00",
     "00:10:00", "00:10:00", "gres/gpu:v100=2", "gres/gpu=2,gres/gpu:v100=2"],
    ["10", "cpu", "nlp", "cpu", "COMPLETED", "2024-01-01T00:00:40", "2024-01-01T00:02:00", "2024-01-01T00:12:00",
     "00:10:00", "00:10:00", "cpu=1", "cpu=1"],
]  # fmt: skip
EXPECTED = [
    {"id": "7", "submitted": 0.0, "gpus": 4, "work": 3600.0, "declared_work": 7200.0, "tenant": "vision",
     "kinds": ["a100"], "name": "a|b"},
    {"id": "8_3", "submitted": 30.0, "gpus": 1, "work": 86400.0, "declares_work": False, "app": "8", "name": "sweep"},
    {"id": "9+0", "submitted": 40.0, "gpus": 2, "work": 600.0, "declared_work": 600.0, "tenant": "nlp",
     "app": "9", "kinds": ["v100"], "name": "het"},
]  # fmt: skip


def separated(delimiter: str, *, trailing: bool = False, header: bool = True) -> str:
    lines = [delimiter.join(row) for row in ([NAMES.split(",")] if header else []) + TABLE]
    return "".join(f"{line}{delimiter if trailing else ''}\n" for line in lines)


def fixed(widths: dict[str, int]) -> str:
    """Columns as sacct prints them without ``-P``: right-aligned, and cut with a ``+``."""
    names = NAMES.split(",")

    def cell(text: str, width: int) -> str:
        return f"{text[: width - 1]}+" if len(text) > width else text.rjust(width)

    sizes = [widths.get(name, 20) for name in names]
    lines = [names, ["-" * size for size in sizes], *TABLE]
    return "".join(" ".join(map(cell, line, sizes)).rstrip(" ") + " \n" for line in lines)


def raw_times() -> str:
    """Times as ``SLURM_TIME_FORMAT=%s`` prints them."""
    text = separated("|")

    def stamp(match: re.Match[str]) -> str:
        return str(int(datetime.fromisoformat(match[0]).replace(tzinfo=UTC).timestamp()))

    return re.sub(r"2024-[0-9T:\-]+", stamp, text)


def csv_quoted() -> str:
    return "".join(",".join(f'"{cell}"' for cell in row) + "\n" for row in [NAMES.split(","), *TABLE])


FORMS = {
    "-P": separated("|"),
    "-p": separated("|", trailing=True),
    "a semicolon": separated(";"),
    "a tab": separated("\t"),
    "a comma, which TRES lists contain": separated(",").replace("CANCELLED by 1000", "CANCELLED"),
    "two characters": separated("@@"),
    "quoted CSV": csv_quoted(),
    "fixed width": fixed({"ReqTRES": 40, "AllocTRES": 40, "State": 10, "Account": 10, "JobID": 12}),
    "SLURM_TIME_FORMAT=%s": raw_times(),
    "Windows line ends": separated("|").replace("\n", "\r\n"),
    "lines ahead of the header": "$ sacct -a -P\nsacct: warning: slow database\n" + separated("|"),
    "two outputs in one file": separated("|") + separated("|").splitlines()[0] + "\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_a_history_reads_alike_in_every_form(reading: Reading, form: str) -> None:
    workload = reading(FORMS[form], "history.txt")
    assert workload.format == "sacct"
    assert rows(workload) == EXPECTED
    assert dict(workload.left_out) == {"steps of jobs": 1, "jobs without a GPU": 1, "jobs that have not ended": 1}
    assert not workload.skipped


def test_a_name_in_another_encoding_loses_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "history.txt"
    path.write_bytes(separated("|").encode().replace(b"sweep", b"B\xfccher"))
    assert rows(read_workload(path)) == [
        {**row, "name": "B\ufffdcher"} if row["id"] == "8_3" else row for row in EXPECTED
    ]


def test_a_file_without_a_header_is_read_where_its_columns_are_named(tmp_path: Path, reading: Reading) -> None:
    text = separated("|", header=False)
    with pytest.raises(InputError, match=r"history.txt:1: header: .*--columns JobID,Submit"):
        reading(text, "history.txt", format="sacct")
    assert rows(read_workload(tmp_path / "history.txt", "sacct", columns=tuple(NAMES.split(",")))) == EXPECTED
    reading(separated("|", header=False, trailing=True), "history.txt", format="sacct", columns=tuple(NAMES.split(",")))


def number(value: int | None, form: str) -> Any:
    """A number as the data parsers of Slurm 21.08 and 23.11 print it."""
    if form == "21.08":
        return value
    return {"set": value is not None, "infinite": False, "number": value or 0}


def json_document(form: str) -> str:
    start = 1704067200
    tres = [{"type": "cpu", "name": None, "id": 1, "count": 8}, {"type": "gres", "name": "gpu:a100", "count": 4}]
    job = {
        "job_id": 7,
        "name": "train",
        "account": "vision",
        "association": {"user": "ann", "account": "vision"},
        "partition": "gpu",
        "nodes": "n[1-2]",
        "array": {"job_id": 0, "task_id": number(None, form)},
        "het": {"job_id": 0, "job_offset": number(None, form)},
        "state": {"current": "COMPLETED" if form == "21.08" else ["COMPLETED"]},
        "time": {"submission": start, "eligible": start, "start": start + 60, "end": start + 3660, "elapsed": 3600,
                 "limit": number(120, form)},
        "tres": {"requested": tres, "allocated": [*tres, {"type": "gres", "name": "gpu", "count": 4}]},
        "steps": [{"tres": {"requested": {"average": [{"type": "gres", "name": "gpuutil", "count": 40}]}}}],
    }  # fmt: skip
    task = job | {"job_id": 12, "array": {"job_id": 8, "task_id": number(3, form)}, "user": "bob", "account": ""}
    task["state"] = {"current": "CANCELLED" if form == "21.08" else ["CANCELLED"]}
    task["association"] = {}
    waits = job | {"job_id": 13, "state": {"current": ["PENDING"]}, "time": {"submission": start, "start": 0, "end": 0}}
    return json.dumps({"meta": {"Slurm": {}}, "errors": [], "jobs": [job, task, waits, "odd"]})


@pytest.mark.parametrize("form", ["21.08", "23.11"])
def test_json_reads_alike_from_old_and_new_versions(reading: Reading, tmp_path: Path, form: str) -> None:
    workload = reading(json_document(form), "history.json")
    assert rows(workload) == [
        {"id": "7", "submitted": 0.0, "gpus": 4, "work": 3600.0, "declared_work": 7200.0, "tenant": "vision",
         "kinds": ["a100"], "user": "ann", "name": "train"},
        {"id": "8_3", "submitted": 0.0, "gpus": 4, "work": 3600.0, "declared_work": 7200.0, "tenant": "bob",
         "app": "8", "kinds": ["a100"], "user": "bob", "name": "train"},
    ]  # fmt: skip
    assert len(workload.skipped) == 1
    assert "jobs[3]: json: 'odd'" in workload.skipped[0]
    first = read_history(Source(tmp_path / "history.json")).jobs[0]
    assert (first.started, first.ended, first.kind, first.nodes, first.gpu_use) == (60.0, 3660.0, "a100", "n[1-2]", 0.4)


def test_of_a_requeued_job_the_last_run_counts_from_the_first_submission(history: Callable[..., Any]) -> None:
    found = history(
        "JobID|State|Submit|Start|End|ReqTRES\n"
        "5|NODE_FAIL|2024-01-01T00:00:00|2024-01-01T00:01:00|2024-01-01T00:02:00|gres/gpu=1\n"
        "5|PREEMPTED|2024-01-01T00:02:00|2024-01-01T00:03:00|2024-01-01T00:05:00|gres/gpu=1\n"
        "5|COMPLETED|2024-01-01T00:05:00|2024-01-01T00:06:00|2024-01-01T00:36:00|gres/gpu=1\n"
        "6|REQUEUED|2024-01-01T00:00:00|2024-01-01T00:06:00|2024-01-01T00:36:00|gres/gpu=1\n"
        "6|OUT_OF_ME+|2024-01-01T00:00:00|2024-01-01T00:46:00|2024-01-01T00:47:00|gres/gpu=1\n"
        "5|COMPLETED|2025-01-01T00:05:00|2025-01-01T00:06:00|2025-01-01T00:07:00|gres/gpu=1\n"
        "5|COMPLETED|2025-01-01T00:05:00|2025-01-01T00:06:00|2025-01-01T00:07:00|gres/gpu=1\n"
    )
    assert [(r.job.id, r.job.submitted, r.job.work, r.started, r.state) for r in found.jobs[:2]] == [
        ("5", 0.0, 1800.0, 360.0, "COMPLETED"),
        ("6", 0.0, 60.0, 2760.0, "OUT_OF_MEMORY"),
    ]
    assert found.jobs[2].job.id == "5~2"
    assert dict(found.left_out) == {"earlier runs of requeued jobs": 3, "repeated lines": 1}


def test_kinds_come_from_tres_gres_or_the_partition(history: Callable[..., Any]) -> None:
    found = history(
        "JobID|Submit|ElapsedRaw|Partition|ReqGRES|NNodes|AllocTRES\n"
        "1|2024-01-01T00:00:00|60|gpu|gpu:v100:2|3|gres/gpu=6\n"
        "2|2024-01-01T00:00:00|60|gpu-a100|gpu:1|1|gres/gpu=1\n"
        "3|2024-01-01T00:00:00|60|gpu-a100|gpu:1|1|gres/gpu:h100=1\n"
        "4|2024-01-01T00:00:00|60|long|PER_NODE:gpu:2|2|\n"
    )
    assert [(r.job.gpus, r.job.kinds, r.kind) for r in found.jobs] == [
        (6, ("v100",), "v100"),
        (1, ("a100",), "a100"),
        (1, None, "h100"),
        (4, None, None),
    ]


def test_odd_lines_are_counted_and_the_rest_is_read(reading: Reading, capsys: pytest.CaptureFixture[str]) -> None:
    odd = [
        "1|soon|60|gres/gpu=1",
        "2|2024-01-01T00:00:00|60",
        "3|2024-01-01T00:00:00|x|gres/gpu=1",
        "4|2024-01-01T00:00:00|60|billing=4,gres/gp+",
        "5|2024-01-01T00:00:00|60|gres/gpu=many",
        "\x00\ufffd",
    ]
    good = "6|2024-01-01T00:00:00|60|gres/gpu=1"
    header = "JobID|Submit|ElapsedRaw|AllocTRES"
    workload = reading("\n".join([header, *odd, good]), "history.txt")
    assert [job.id for job in workload.jobs] == ["6"]
    assert len(workload.skipped) == 6
    assert "history.txt:2: Submit: 'soon'" in workload.skipped[0]
    assert "sacct cut the field" in workload.skipped[3]
    path = Path(workload.source)
    with pytest.raises(SystemExit) as left:
        main(["workload", "import", str(path), "--out", str(path.with_suffix(".jsonl"))])
    assert not left.value.code
    assert "skipped 6 broken rows" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("JobID|Submit|ElapsedRaw\n1|2024-01-01T00:00:00|5\n", "has no column AllocTRES"),
        ("JobID|ElapsedRaw|AllocTRES\n1|5|gres/gpu=1\n", "has no column Submit"),
        ("JobID|Submit|AllocTRES\n1|5|gres/gpu=1\n", "has no column ElapsedRaw or Elapsed"),
        ("JobID Submit AllocTRES\n1 5 gres/gpu=1\n", "line of dashes"),
        ("JobID|Submit|ElapsedRaw|AllocTRES\n1|soon|5|gres/gpu=1\n", "holds no job: 1 broken rows, the first"),
        ('{"jobs": 3}', 'has no list "jobs"'),
        ('{"jobs": [', "is not JSON"),
        ("hello\n", "names no columns"),
    ],
)
def test_an_impossible_file_is_one_line_with_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    path = tmp_path / "history.txt"
    path.write_text(text)
    with pytest.raises(SystemExit) as left:
        main(["workload", "import", str(path), "--format", "sacct", "--out", str(tmp_path / "w.jsonl")])
    said = capsys.readouterr().err
    assert left.value.code == 2
    assert message in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", "n1"),
        ("gpu[01-03,7],login1", "gpu01 gpu02 gpu03 gpu7 login1"),
        ("r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2"),
        ("None assigned", ""),
        ("n[1-999999999]", ""),
    ],
)
def test_lists_of_nodes_are_expanded(text: str, names: str) -> None:
    assert " ".join(expand_nodes(text)) == names


def test_small_fields() -> None:
    assert (kind_in("gpu-a100-long"), kind_in("p100"), kind_in("rtx_3090"), kind_in("batch")) == (
        "a100",
        "p100",
        "rtx_3090",
        None,
    )
    assert gres_gpus("ReqGRES", "gpu:tesla_v100:2(S:0-1),lustre:1", 2).kinds == {"tesla_v100": 4}
    assert [state_of(text) for text in ("CANCELLED by 12", "CANCELLED+", "NODE_FAIL", "REQUEUE_H+")] == [
        "CANCELLED",
        "CANCELLED",
        "NODE_FAIL",
        "REQUEUE_HOLD",
    ]
