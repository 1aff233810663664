"""The public files, where they are at hand: facts about each that were counted without Shoal."""

from pathlib import Path

import pytest

from shoal.core.topology import Locality
from shoal.perf.catalog import catalog
from shoal.workload.files import read_workload


def test_the_whole_philly_trace(shared: Path) -> None:
    workload = read_workload(shared / "traces" / "philly_pollux_82247.csv.gz")
    assert (workload.format, len(workload), workload.skipped, workload.left_out) == ("philly", 82247, (), ())
    assert (workload.jobs[0].submitted, workload.jobs[0].id) == (0.0, "philly-031566")
    assert len({job.tenant for job in workload.jobs}) == 15
    # 2017-09-04 to 2017-12-22
    assert workload.jobs[-1].submitted == pytest.approx(108.9 * 86400, rel=1e-3)
    # The file's own gpu_time column sums to this many GPU-hours.
    assert sum(job.gpus * job.work for job in workload.jobs) / 3600 == pytest.approx(978_078.5, abs=0.1)


def test_philly_by_virtual_cluster_is_the_same_jobs(shared: Path) -> None:
    whole = read_workload(shared / "traces" / "philly_pollux_82247.csv.gz")
    part = read_workload(shared / "traces" / "philly_by_vc" / "08_ee9e8c.csv.gz")
    same = [job for job in whole.jobs if job.tenant == "ee9e8c"]
    assert part.format == "simple"
    theirs = sorted((j.submitted, j.gpus, j.work) for j in part.jobs)
    assert theirs == sorted((j.submitted - same[0].submitted, j.gpus, j.work) for j in same)


@pytest.mark.parametrize(
    ("path", "form", "jobs"),
    [
        ("traces/small/60_job.json", "simple", 60),
        ("traces/tiresias/60_job.csv", "simple", 60),
        ("gavel/traces/physical_cluster/max_min_fairness.trace", "gavel", 96),
        ("gavel/traces/msr_seed0/ed69ec.trace", "gavel", 951),
        ("shockwave/jobs_900_wisr.json", "shockwave", 900),
        ("pollux/workloads/workload-1.csv", "pollux", 160),
        ("sia/workloads-newtrace/workload-1.csv", "pollux", 960),
        ("traces/alibaba_gpu_v2023/openb_pod_list_default.csv.gz", "alibaba", 6203),
    ],
)
def test_public_files_are_recognised_and_read_whole(shared: Path, path: str, form: str, jobs: int) -> None:
    workload = read_workload(shared / path)
    assert (workload.format, len(workload), workload.skipped) == (form, jobs, ())


def test_the_two_forms_of_the_60_job_trace_agree(shared: Path) -> None:
    csv = read_workload(shared / "traces" / "tiresias" / "60_job.csv")
    json = read_workload(shared / "traces" / "small" / "60_job.json")
    assert csv.jobs == json.jobs


def test_gavel_jobs_left_out_are_those_no_table_has(shared: Path) -> None:
    workload = read_workload(shared / "gavel" / "traces" / "msr_seed0" / "0e4a51.trace")
    assert len(workload) + sum(count for _, count in workload.left_out) == 1181
    assert all(
        catalog().profile(job.model or "").rate("v100", job.gpus, Locality.SAME_NODE, job.batch_size) > 0
        for job in workload.jobs
    )


def test_the_two_forms_of_a_shockwave_trace_agree_on_everything_but_the_schedules(shared: Path) -> None:
    (path,) = (shared / "shockwave" / "traces").glob("120_*.trace")
    trace = read_workload(path)
    json = read_workload(shared / "shockwave" / "jobs_120_tacc.json")
    for ours, theirs in zip(trace.jobs, json.jobs, strict=True):
        assert (ours.id, ours.submitted, ours.gpus, ours.model) == (
            theirs.id,
            theirs.submitted,
            theirs.gpus,
            theirs.model,
        )
        assert ours.batch_size == theirs.batch_size
        # The authors count whole epochs (at most 100,000 samples) of whole steps (14.4 of 8192 are taken for 15).
        assert ours.work == pytest.approx(theirs.work, rel=0.05, abs=100_000)
