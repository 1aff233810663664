import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.core.errors import InputError
from shoal.workload.files import parse_window, read_workload, to_jsonl, to_parquet, write_workload
from shoal.workload.importers import FORMATS
from shoal.workload.schema import Job, Workload

Reading = Callable[..., Workload]

SECONDS = st.floats(0.0, 1e9)
POSITIVE = st.floats(1e-9, 1e12)
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=8)
COUNTS = st.integers(1, 64)


@st.composite
def jobs(draw: st.DrawFn, name: str) -> Job:
    gpus, work, submitted = draw(COUNTS), draw(POSITIVE), draw(SECONDS)
    declares = draw(st.booleans())
    model = draw(st.none() | NAMES)
    shares = draw(st.lists(st.floats(0.0, 0.99), max_size=4)) if model else []
    progress = sorted({share * work for share in shares})
    return Job(
        id=name,
        submitted=submitted,
        gpus=gpus,
        work=work,
        declared_work=draw(st.none() | POSITIVE) if declares else None,
        declares_work=declares,
        min_gpus=draw(st.none() | st.integers(1, gpus)),
        max_gpus=draw(st.none() | st.integers(gpus, 99)),
        tenant=draw(NAMES),
        app=draw(st.none() | NAMES),
        model=model,
        batch_size=draw(st.none() | COUNTS),
        batch_schedule=tuple((p, draw(COUNTS)) for p in progress),
        kinds=draw(st.none() | st.lists(NAMES, min_size=1, max_size=3, unique=True).map(tuple)),
        weight=draw(POSITIVE),
        deadline=draw(st.none() | st.just(submitted + 1.0)),
        restart_seconds=draw(st.none() | SECONDS),
        checkpoint_gb=draw(st.none() | SECONDS),
        limits=draw(st.none() | st.just((2, gpus + 2, 1, gpus))) if model else None,
        adaptation=draw(st.sampled_from([None, "gns", "accordion"])) if model else None,
    )


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    return Workload("w", tuple(draw(jobs(name)) for name in names))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(workload=workloads())
@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "parquet"])
def test_what_is_written_is_read_again_exactly(tmp_path: Path, suffix: str, workload: Workload) -> None:
    path = tmp_path / f"w.{suffix}"
    write_workload(workload, path)
    first = path.read_bytes()
    again = read_workload(path)
    assert again.jobs == workload.jobs
    assert (again.name, again.format, again.skipped) == ("w", "shoal", ())
    write_workload(again, path)
    assert path.read_bytes() == first


def test_equal_workloads_give_equal_bytes_and_defaults_are_left_out() -> None:
    workload = Workload("w", (Job(id="a", submitted=0.0, gpus=1, work=0.1),))
    assert to_jsonl(workload) == b'{"id":"a","submitted":0.0,"gpus":1,"work":0.1}\n'
    alike = Job(id="a", submitted=0, gpus=1, work=0.1, weight=1, tenant="".join(["def", "ault"]), kinds=None)
    assert to_jsonl(Workload("w", (alike,))) == to_jsonl(workload)
    assert to_parquet(workload) == to_parquet(Workload("other", workload.jobs))


GOOD = '{"id":"a","submitted":0,"gpus":1,"work":5}'


@pytest.mark.parametrize(
    ("line", "field", "value", "hint"),
    [
        ('{"id":"b","submitted":0,"gpus":"two","work":5}', "gpus", "two", "must be a whole number"),
        ('{"id":"b","submitted":0,"gpus":2.5,"work":5}', "gpus", 2.5, "must be a whole number"),
        ('{"id":"b","submitted":0,"gpus":1}', "work", None, "is missing"),
        ('{"id":"b","submitted":0,"gpus":1,"work":5,"tennant":"x"}', "tennant", "x", "did you mean tenant"),
        ('{"id":"b","submitted":-3,"gpus":1,"work":5}', "submitted", -3.0, "at least 0"),
        ('{"id":"a","submitted":0,"gpus":1,"work":5}', "id", "a", "the job at 1 too"),
        ('{"id":"b","submitted":0,"gpus":1,"work":NaN}', "row", None, "is not JSON"),
        ('{"id":"b","submitted":0,"gpus":1,"work":1e999}', "work", "1e999", "must be a number"),
        ('{"id":"b","gpus":"x", and so on', "row", None, "is not JSON"),
        ("[" * 100_000, "row", None, "nested too deeply"),
        ("[1,2]", "row", [1, 2], "must be an object"),
    ],
)
def test_a_broken_line_is_named_by_file_line_field_and_value(
    reading: Reading, line: str, field: str, value: object, hint: str
) -> None:
    text = f"{GOOD}\n\n{line}\n"
    with pytest.raises(InputError) as caught:
        reading(text, "w.jsonl")
    error = caught.value
    assert error.where.endswith("w.jsonl:3")
    assert error.field == field
    assert hint in error.hint
    assert value is None or error.value == value
    skipped = reading(text, "w.jsonl", skip_bad=True)
    assert len(skipped.jobs) == len(skipped.skipped) == 1
    assert skipped.skipped[0] == str(error)


def test_a_broken_parquet_row_is_named_by_its_number(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    path = tmp_path / "w.parquet"
    columns = {"id": ["a", "b"], "submitted": [0.0, 1.0], "gpus": [1, 1], "work": [5.0, -5.0]}
    parquet.write_table(pa.table(columns), path)
    with pytest.raises(InputError, match=r"w\.parquet\[1\]: work: -5\.0: must be a finite number above 0"):
        read_workload(path)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(InputError, match="not a whole Parquet file"):
        read_workload(path)


def test_a_window_is_cut_while_reading(reading: Reading) -> None:
    text = "job_id,submit,duration,num_gpu\n" + "".join(f"{i},{i * 10},5,1\n" for i in range(5))
    assert [(j.id, j.submitted) for j in reading(text, "w.csv", window=(10, 30)).jobs] == [("1", 0.0), ("2", 10.0)]
    with pytest.raises(InputError, match="no job is submitted in it"):
        reading(text, "w.csv", window=(100, 200))


@pytest.mark.parametrize(("text", "window"), [("0:60", (0.0, 60.0)), ("60:", (60.0, float("inf"))), (":60", (0, 60))])
def test_a_window_is_two_numbers(text: str, window: tuple[float, float]) -> None:
    assert parse_window(text) == window


@pytest.mark.parametrize("text", ["60", "60:0", "a:b", "-1:5", "nan:5", ""])
def test_a_window_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="A:B"):
        parse_window(text)


@pytest.mark.parametrize(
    ("name", "text", "form"),
    [
        ("w.csv", "job_id,submit,duration,num_gpu\n0,0,1,1\n", "simple"),
        ("w.json", '[{"job_id": 0, "submit": 0, "duration": 1, "num_gpu": 1}]', "simple"),
        ("w.csv", "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,1,66.0,vc\n", "philly"),
        ("w.csv", "name,time,application,num_replicas,batch_size\na,0,bert,1,12\n", "pollux"),
        ("w.txt", "JobID|Submit|ElapsedRaw|AllocTRES\n1|2024-01-01T00:00:00|5|gres/gpu=1\n", "sacct"),
        ("w.trace", "A3C\tx\tx\tx\t0\t10\t1\t1\t-1\t0\n", "gavel"),
        ("w", GOOD.replace("{", "{"), None),
    ],
)
def test_a_format_is_recognised_by_what_the_file_says(reading: Reading, name: str, text: str, form: str | None) -> None:
    if form is None:
        with pytest.raises(InputError, match="say which: shoal, simple"):
            reading(text, name)
    else:
        assert reading(text, name).format == form


def test_a_misspelt_format_is_answered_with_the_nearest(reading: Reading) -> None:
    with pytest.raises(InputError, match="did you mean philly"):
        reading("", "w.csv", format="phily")


def test_every_format_of_the_contract_is_there() -> None:
    assert list(FORMATS) == [
        "shoal",
        "simple",
        "gavel",
        "shockwave",
        "pollux",
        "sia",
        "philly",
        "helios",
        "alibaba",
        "sacct",
    ]


def test_files_that_cannot_be_read_say_so(tmp_path: Path, reading: Reading) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_workload(tmp_path / "none.csv")
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(b"job_id,submit,duration,num_gpu\n" * 99)[:40])
    with pytest.raises(InputError, match="not whole gzip"):
        read_workload(tmp_path / "cut.csv.gz")
    (tmp_path / "latin.csv").write_bytes(b"job_id,submit,duration,num_gpu\n\xe9,0,1,1\n")
    with pytest.raises(InputError, match=r"latin\.csv:2: .*not UTF-8"):
        read_workload(tmp_path / "latin.csv")
    with pytest.raises(InputError, match="holds no job: it has no rows"):
        reading("job_id,submit,duration,num_gpu\n", "w.csv")
    with pytest.raises(InputError, match="not JSON"):
        reading('[{"submit": 1, "duration": ', "w.json")
    with pytest.raises(InputError, match=r"must end in \.jsonl"):
        write_workload(Workload("w", ()), tmp_path / "w.csv")
    with pytest.raises(InputError, match="cannot be written"):
        write_workload(Workload("w", ()), tmp_path / "no" / "w.jsonl")
