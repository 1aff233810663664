"""Every format on a sample small enough to read: which jobs must come out, and why."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from shoal.core.errors import InputError
from shoal.core.topology import Locality
from shoal.perf.catalog import catalog
from shoal.workload.files import to_jsonl
from shoal.workload.schema import Workload

Reading = Callable[..., Workload]


def rows(workload: Workload) -> list[dict[str, Any]]:
    """The jobs with the fields that are not at their defaults."""
    return [msgspec.json.decode(line, type=dict[str, Any]) for line in to_jsonl(workload).splitlines()]


def test_simple_csv_keeps_numbers_exactly_as_written(reading: Reading) -> None:
    text = "num_gpu,note,job_id,duration,submit\n2,x,b,4578.832840173429,0.1\n1,y,a,164,0\n"
    assert rows(reading(text, "w.csv")) == [
        {"id": "a", "submitted": 0.0, "gpus": 1, "work": 164.0},
        {"id": "b", "submitted": 0.1, "gpus": 2, "work": 4578.832840173429},
    ]


@pytest.mark.parametrize(
    "header",
    ["job_id,submit_s,duration_s,num_gpus", "id,submit,duration,gpus", "job_id,submit_time,duration,num_gpu"],
)
def test_simple_csv_knows_the_usual_names_of_its_columns(reading: Reading, header: str) -> None:
    assert rows(reading(f"{header}\n7,3,5,4\n", "w.csv")) == [{"id": "7", "submitted": 3.0, "gpus": 4, "work": 5.0}]


def test_simple_json_is_read_alike(reading: Reading) -> None:
    text = '[{"job_id": 7, "submit": 3, "duration": 0.1, "num_gpu": 4}]'
    assert rows(reading(text, "w.json")) == [{"id": "7", "submitted": 3.0, "gpus": 4, "work": 0.1}]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1,0,x,1", ":3: duration: 'x': is not a number"),
        ("1,0,0,1", ":3: duration: '0': must be above 0"),
        ("1,0,nan,1", ":3: duration: 'nan': must be finite"),
        ("1,-1,5,1", ":3: submit: '-1': must be at least 0"),
        ("1,0,5,0", ":3: num_gpu: 0: must be at least 1"),
        ("1,0,5,1.5", ":3: num_gpu: '1.5': must be a whole number"),
        ("1,0,5", ":3: row: '1,0,5': has 3 fields where the header has 4"),
        ("0,0,5,1", ":3: id: '0': is the id of the job at 2 too"),
        (",0,5,1", ":3: id: '': must not be empty"),
    ],
)
def test_a_broken_simple_row_is_named_and_can_be_skipped(reading: Reading, row: str, message: str) -> None:
    text = f"job_id,submit,duration,num_gpu\n0,0,1,1\n{row}\n2,0,1,1\n"
    with pytest.raises(InputError) as caught:
        reading(text, "w.csv")
    assert f"w.csv{message}" in str(caught.value)
    kept = reading(text, "w.csv", skip_bad=True)
    assert [j.id for j in kept.jobs] == ["0", "2"]
    assert kept.skipped == (str(caught.value),)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"job_id": 1, "submit": 0, "duration": "5", "num_gpu": true}', "[0]: num_gpu: True: is not a number"),
        ('{"job_id": 1, "submit": 0, "num_gpu": 1}', "[0]: duration: None: is missing"),
        ('{"job_id": 1.5, "submit": 0, "duration": 5, "num_gpu": 1}', "[0]: job_id: 1.5: must be a string"),
        ('{"job_id": 1, "id": 1, "submit": 0, "duration": 5, "num_gpu": 1}', "[0]: job_id and id: 1: mean the same"),
        ("7", "[0]: json: 7: must be an object"),
    ],
)
def test_a_broken_simple_object_is_named(reading: Reading, row: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        reading(f"[{row}]", "w.json", format="simple")
    assert message in str(caught.value)


def test_a_simple_table_without_a_needed_column_says_which(reading: Reading) -> None:
    with pytest.raises(InputError, match=r"w\.csv:1: header: .*has no column duration or duration_s"):
        reading("job_id,submit,num_gpu\n", "w.csv", format="simple")
    with pytest.raises(InputError, match="num_gpu and gpus': mean the same"):
        reading("job_id,submit,duration,num_gpu,gpus\n", "w.csv", format="simple")


def test_philly_counts_seconds_from_the_earliest_row_and_names_jobs_by_row(reading: Reading) -> None:
    text = (
        "timestamp,duration,num_gpus,gpu_time,cluster\n"
        "2017-10-09 07:01:55,66.0,1,66.0,11cb48\n"
        "2017-10-09 06:01:50,10.5,8,84.0,6214e9\n"
        "2017-10-01 00:00:00,0.0,1,0.0,6214e9\n"
    )
    workload = reading(text, "w.csv")
    assert rows(workload) == [
        {"id": "philly-000001", "submitted": 0.0, "gpus": 8, "work": 10.5, "tenant": "6214e9"},
        {"id": "philly-000000", "submitted": 3605.0, "gpus": 1, "work": 66.0, "tenant": "11cb48"},
    ]
    assert workload.left_out == (("jobs that never ran", 1),)
    with pytest.raises(InputError, match=r"w\.csv:2: timestamp: '9 Oct': is not a time"):
        reading(text.replace("2017-10-09 07:01:55", "9 Oct"), "w.csv")
    # A skipped row keeps its number, so ids do not depend on what was skipped before them.
    kept = reading(text.replace("2017-10-09 07:01:55,", ""), "w.csv", skip_bad=True)
    assert [job.id for job in kept.jobs] == ["philly-000001"]


def test_philly_as_published_sums_the_attempts_that_ended(reading: Reading) -> None:
    def attempt(start: str, end: str | None, *machines: int) -> dict[str, object]:
        detail = [{"ip": f"m{i}", "gpus": [f"gpu{g}" for g in range(n)]} for i, n in enumerate(machines)]
        return {"start_time": start, "end_time": end, "detail": detail}

    def job(name: str, submitted: str, *attempts: object) -> dict[str, object]:
        return {"status": "Pass", "vc": "ee9e8c", "jobid": name, "submitted_time": submitted, "attempts": attempts}

    log = [
        job(
            "application_1",
            "2017-10-07 01:11:25",
            attempt("2017-10-07 01:12:00", "2017-10-07 01:13:00", 8, 8),
            attempt("2017-10-07 02:00:00", "2017-10-07 02:00:30", 8, 8),
            attempt("2017-10-07 03:00:00", None, 8, 8),
        ),
        job("application_2", "2017-10-07 01:11:20"),
        job("application_3", "2017-10-07 01:11:24", attempt("2017-10-07 02:00:00", "2017-10-07 02:00:01", 1)),
    ]
    workload = reading(msgspec.json.encode(log).decode(), "cluster_job_log.json")
    assert workload.format == "philly"
    assert rows(workload) == [
        {"id": "application_3", "submitted": 0.0, "gpus": 1, "work": 1.0, "tenant": "ee9e8c"},
        {"id": "application_1", "submitted": 1.0, "gpus": 16, "work": 90.0, "tenant": "ee9e8c"},
    ]
    assert workload.left_out == (("jobs that never held a GPU", 1),)


def test_gavel_work_is_steps_times_batch_and_the_slo_is_a_multiple_of_the_v100_run_time(reading: Reading) -> None:
    text = (
        "ResNet-50 (batch size 64)\tpython3 main.py\tdir\t-n\t1\t1000\t4\t2\t1.5\t10\n"
        "A3C\tpython3 main.py\tdir\t-n\t0\t50\t1\t1\t-1.000000\t20.5\n"
        "LM (batch size 5)\tcd x && python3\t--steps\t1\t400\t30.000000\t2\n"
        "CycleGAN\tcd x && python3\t--steps\t1\t400\t30.000000\t4\n"
    )
    workload = reading(text, "w.trace")
    rate = catalog().profile("ResNet-50").rate("v100", 4, Locality.SAME_NODE, 64)
    restart = {"restart_seconds": 5.0}  # §7.5: checkpoints are saved and loaded in less
    assert rows(workload) == [
        {
            "id": "0",
            "submitted": 10.0,
            "gpus": 4,
            "work": 64000.0,
            "model": "ResNet-50",
            "batch_size": 64,
            "weight": 2.0,
            "deadline": 10.0 + 1.5 * 64000.0 / rate,
            **restart,
        },
        {"id": "1", "submitted": 20.5, "gpus": 1, "work": 50.0, "model": "A3C", "batch_size": 1, **restart},
        {"id": "2", "submitted": 30.0, "gpus": 2, "work": 2000.0, "model": "LM", "batch_size": 5, **restart},
    ]
    assert workload.left_out == (("jobs on more GPUs than their model can train on", 1),)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("ResNet-51 (batch size 64)\tc\td\t-n\t1\t1000\t4\t2\t-1\t10", "did you mean ResNet-50"),
        ("ResNet-50\tc\td\t-n\t1\t1000\t4\t2\t-1\t10", "names no batch size"),
        ("bert (batch size 12)\tc\td\t-n\t1\t1000\t4\t2\t-1\t10", "unknown"),
        ("LM (batch size 5)\tc\td\t-n\t1\t0\t4\t2\t-1\t10", ":1: total_steps: 0: must be at least 1"),
        ("LM (batch size 5)\tc\td\t-n\t1\t9\t4\t2\t-1\tsoon", ":1: arrival_time: 'soon': is not a number"),
        ("LM (batch size 5)\tc\td", "has 3 tab-separated fields"),
    ],
)
def test_a_broken_gavel_line_is_named(reading: Reading, line: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        reading(line + "\n", "w.trace", format="gavel")
    assert message in str(caught.value)


def test_a_shockwave_trace_gets_our_schedule_for_the_modes_that_change_their_batch(reading: Reading) -> None:
    # LM was measured with up to 80: from 20 that is two doublings, at a quarter and at half of 400 x 20 samples.
    line = "LM (batch size 20)\tc\td\t--steps\t1\t400\t2\t{}\t1\t-1.000000\t1418\t7\n"
    gns, accordion, static = (reading(line.format(mode), "w.trace").jobs[0] for mode in ("gns", "accordion", "static"))
    assert (gns.work, gns.submitted, gns.gpus, gns.batch_size) == (8000.0, 7.0, 2, 20)
    assert gns.batch_schedule == ((2000.0, 40), (4000.0, 80))
    # Accordion: large after 30 % of the work, small again for 5 % after one half and three quarters.
    assert [size for _, size in accordion.batch_schedule] == [80, 20, 80, 20, 80]
    assert [p / 8000 for p, _ in accordion.batch_schedule] == pytest.approx([0.3, 0.5, 0.55, 0.75, 0.8])
    assert static.batch_schedule == ()
    with pytest.raises(InputError, match=r"w\.trace:1: mode: 'gsn': unknown; did you mean gns"):
        reading(line.format("gsn"), "w.trace")


def test_shockwave_json_has_the_exact_schedule(reading: Reading) -> None:
    job = {
        "job": 3,
        "arrival_s": 55.0,
        "job_type": "LM (batch size 10)",
        "mode": "gns",
        "gpus": 1,
        "priority_weight": 1.0,
        "num_epochs": 23,
        "samples_per_epoch": 59675,
        "bs_schedule_rle": [[10, 11], [20, 10], [40, 1], [10, 1]],
    }

    def read(**changes: object) -> Workload:
        return reading(msgspec.json.encode({"jobs": [{**job, **changes}]}).decode(), "w.json")

    (read_job,) = read().jobs
    assert read_job.work == 23 * 59675
    assert list(read_job.batch_schedule) == [(11 * 59675.0, 20), (21 * 59675.0, 40), (22 * 59675.0, 10)]
    with pytest.raises(InputError, match="covers 23 epochs where num_epochs is 24"):
        read(num_epochs=24)
    with pytest.raises(InputError, match="does not begin with the batch size of the job type, 10"):
        read(bs_schedule_rle=[[20, 23]])


@pytest.mark.parametrize("form", ["pollux", "sia"])
def test_pollux_jobs_are_whole_trainings_and_elastic_but_for_ncf(reading: Reading, form: str) -> None:
    text = "name,time,application,num_replicas,batch_size\ncifar10-0,107,cifar10,6,2048\nncf-1,110.5,ncf,1,32768\n"
    cifar10, ncf = reading(text, "w.csv", format=form).jobs
    assert (cifar10.id, cifar10.submitted, cifar10.gpus, cifar10.batch_size) == ("cifar10-0", 107.0, 6, 2048)
    assert cifar10.work == catalog().work("cifar10")
    assert (cifar10.spec().min_gpus, cifar10.spec().max_gpus) == (1, 64)
    assert (ncf.submitted, ncf.spec().elastic) == (110.5, False)
    assert cifar10.limits == (128, 4096, 32, 4096)
    assert (cifar10.restart_seconds, ncf.restart_seconds) == ((None, None) if form == "pollux" else (50.0, 15.0))
    with pytest.raises(InputError, match=r"w\.csv:2: application: 'cifar': unknown; did you mean cifar10"):
        reading(text.replace(",cifar10,", ",cifar,"), "w.csv", format=form)
    with pytest.raises(InputError, match=r"w\.csv:2: batch_size: 4: is less than a sample"):
        reading(text.replace("2048", "4"), "w.csv", format=form)


def test_helios_leaves_out_cpu_jobs_and_jobs_that_never_ran(reading: Reading) -> None:
    text = (
        "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
        "11,u1,vcA,0,4,1,COMPLETED,2020-03-01 00:00:00,2020-03-01 00:00:01,2020-03-01 00:01:01,60,1\n"
        "12,u1,vcA,8,64,1,FAILED,2020-04-01 00:05:00,2020-04-01 00:06:00,2020-04-01 00:07:30,90,60\n"
        "13,u2,vcB,1,4,1,CANCELLED,2020-04-01 00:00:00,None,2020-04-01 00:00:09,0,9\n"
        "14,u2,vcB,1,4,1,COMPLETED,2020-04-01 00:04:00,2020-04-01 00:04:00,2020-04-01 00:04:07,7,0\n"
    )
    workload = reading(text, "cluster_log.csv")
    assert workload.format == "helios"
    assert rows(workload) == [
        {"id": "14", "submitted": 0.0, "gpus": 1, "work": 7.0, "tenant": "vcB", "user": "u2"},
        {"id": "12", "submitted": 60.0, "gpus": 8, "work": 90.0, "tenant": "vcA", "user": "u1"},
    ]
    assert workload.left_out == (("jobs that never ran", 1), ("jobs without a GPU", 1))


def test_alibaba_shares_become_whole_gpus_and_specs_become_kinds(reading: Reading) -> None:
    text = (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
        "p0,6000,12288,1,460,,LS,Running,100,250,110\n"
        "p1,6000,12288,2,1000,V100M16|V100M32,BE,Failed,90,95,90\n"
        "p2,6000,12288,0,0,,LS,Running,0,10,0\n"
        "p3,6000,12288,1,1000,,LS,Pending,5,10,\n"
    )
    workload = reading(text, "openb_pod_list.csv")
    assert rows(workload) == [
        {"id": "p1", "submitted": 90.0, "gpus": 2, "work": 5.0, "tenant": "BE", "kinds": ["v100m16", "v100m32"]},
        {"id": "p0", "submitted": 100.0, "gpus": 1, "work": 140.0, "tenant": "LS"},
    ]
    assert workload.left_out == (("pods that never ran", 1), ("pods without a GPU", 1))
    with pytest.raises(InputError, match=r":2: deletion_time: '50': is before scheduled_time, 110"):
        reading(text.replace("100,250,110", "100,50,110"), "openb_pod_list.csv")
