"""A recorded history by hand: its cluster, its waste, and the intervals of a comparison."""

from collections.abc import Sequence

import numpy as np
import pytest

from shoal.core.errors import InputError
from shoal.core.topology import parse_cluster
from shoal.core.units import DAY
from shoal.report.advice import FigureInterval, Outcome, advice_of, draw_days, recorded_outcome
from shoal.report.advice_words import finding_sentences, time_text, waste_sentences
from shoal.report.recorded_use import cluster_spec, columns_of, use_over_time, waste
from shoal.workload.importers.sacct import RecordedJob
from shoal.workload.schema import Job

HOUR = 3600.0


def recorded(
    name: str,
    hours: Sequence[float],
    gpus: int = 1,
    *,
    ran: str | None = None,
    asked: str | None = None,
    limit: float | None = None,
    **more: str | float | None,
) -> RecordedJob:
    """A job eligible, started and ended at these hours."""
    eligible, start, end = (hour * HOUR for hour in hours)
    job = Job(
        id=name,
        submitted=eligible,
        gpus=gpus,
        work=end - start,
        declared_work=None if limit is None else limit * HOUR,
        declares_work=limit is not None,
        kinds=(asked,) if asked else None,
        tenant=str(more.pop("tenant", "default")),
    )
    fields = {"state": "COMPLETED", "user": "", "name": "", "partition": "", "nodes": "", **more}
    return RecordedJob(job, eligible, start, end, ran or asked, **fields)  # type: ignore[arg-type]


def test_the_cluster_is_every_node_seen_with_the_most_gpus_used_on_it_at_once() -> None:
    jobs = [
        recorded("a", (0, 0, 4), 8, ran="a100", nodes="n[1-2]"),  # 4 on each
        recorded("b", (0, 1, 2), 3, ran="a100", nodes="n1"),  # 7 on n1: a node of 8
        recorded("c", (0, 0, 1), 1, ran="v100", nodes="m1"),
        recorded("d", (0, 1, 2), 1, nodes="m1"),  # begins as c ends; its kind is that of the node
    ]
    columns = columns_of(jobs)
    spec, how = cluster_spec(columns)
    assert spec == "a100:1x8,a100:1x4,v100:1x1"
    assert "NodeList" in how
    assert [columns.kinds[kind] for kind in columns.kind] == ["a100", "a100", "v100", "v100"]


@pytest.mark.parametrize(
    ("gpus", "spec"), [([1, 2], "gpu:1x4"), ([1], "gpu:1x1"), ([8, 1], "gpu:2x8"), ([64], "gpu:8x8")]
)
def test_without_nodes_the_cluster_is_the_most_gpus_used_at_once(gpus: list[int], spec: str) -> None:
    jobs = [recorded(str(i), (0, 0, 1), count) for i, count in enumerate(gpus)]
    jobs.append(recorded("later", (0, 1, 2), 1))
    assert cluster_spec(columns_of(jobs))[0] == spec


def test_a_history_without_starts_is_refused() -> None:
    job = recorded("a", (0, 0, 1))
    bare = RecordedJob(job.job, 0.0, None, None, None, "", "", "", "", "")
    with pytest.raises(InputError, match="add the columns Start and End"):
        columns_of([bare])


def test_a_job_may_use_the_kinds_it_asked_for_or_those_of_its_partition() -> None:
    jobs = [
        recorded("a", (0, 0, 1), asked="p", partition="x"),
        recorded("b", (0, 0, 1), ran="q", partition="x"),
        recorded("c", (0, 0, 1), ran="r", partition="y"),
        recorded("d", (0, 0, 1), partition="y"),
        recorded("e", (0, 0, 1)),
    ]
    columns = columns_of(jobs)
    names = [[k for k, ok in zip(columns.kinds, row, strict=True) if ok] for row in columns.usable.tolist()]
    assert names == [["p"], ["p", "q"], ["r"], ["r"], ["p", "q", "r"]]


def test_idle_over_asked_and_wrong_kind_hours_by_hand() -> None:
    # 2 p and 2 q for 10 hours. a holds both p for 8 hours; b asks for a p and waits for it from 2 to 8, while q is
    # idle but for c, which uses one q for the first 4 hours. d, at 10, ends the period.
    jobs = [
        recorded("a", (0, 0, 8), 2, asked="p", limit=16, gpu_use=0.25),
        recorded("b", (2, 8, 10), 1, asked="p"),
        recorded("c", (0, 0, 4), 1, asked="q", state="FAILED"),
        recorded("d", (10, 10, 11), 1, asked="q"),
    ]
    cluster = parse_cluster("p:1x2,q:1x2")
    found = waste(columns_of(jobs, cluster), cluster)
    p, q = found["kinds"]
    assert (p["used"], p["idle"], p["idle_while_waiting"], p["wrong_kind"]) == (18.0, 2.0, 0.0, 0.0)
    assert (q["used"], q["idle"], q["idle_while_waiting"], q["wrong_kind"]) == (4.0, 16.0, 0.0, 6.0)
    assert (found["gpu_hours"], found["wrong_kind"]) == (40.0, 6.0)
    assert (found["asked_time"], found["over_asked_time"], found["limit_over_run_median"]) == (32.0, 16.0, 2.0)
    assert (found["measured_gpu_hours"], found["unused_gpu"]) == (16.0, 12.0)
    assert found["gpu_hours_by_state"] == {"COMPLETED": 19.0, "FAILED": 4.0}
    said = " ".join(waste_sentences(found))
    assert "6 GPU-hours (15.0%) were idle while jobs waited that had asked for another kind" in said
    assert "75% of 16 allocated GPU-hours were unused" in said


def test_idle_gpus_that_a_waiting_job_could_use_are_counted_as_such() -> None:
    jobs = [recorded("a", (0, 3, 5), 2), recorded("b", (10, 10, 11), 1)]
    cluster = parse_cluster("gpu:1x2")
    (row,) = waste(columns_of(jobs, cluster), cluster)["kinds"]
    assert (row["used"], row["idle"], row["idle_while_waiting"]) == (4.0, 16.0, 6.0)
    use = use_over_time(columns_of(jobs), points=10)
    assert use["used"] == [0, 0, 0, 2, 2, 0, 0, 0, 0, 0]
    assert use["waiting"] == [2, 2, 2, 0, 0, 0, 0, 0, 0, 0]


# ── intervals ─────────────────────────────────────────────────────────────────────────────────────────────────────


def month(seed: int = 0) -> list[RecordedJob]:
    rng = np.random.default_rng(seed)
    hours = np.sort(rng.uniform(0, 30 * 24, 600))
    waits = rng.exponential(2.0, 600)
    rows = []
    for i, (hour, wait) in enumerate(zip(hours.tolist(), waits.tolist(), strict=True)):
        rows.append(recorded(f"j{i}", (hour, hour + wait, hour + wait + 1.0), tenant=f"t{i % 3}"))
    return rows


def test_draws_are_blocks_of_days_and_hold_as_many_days_as_there_are() -> None:
    draws = draw_days(np.arange(0.0, 30 * DAY, 3600.0))
    assert draws.counts.shape == (400, 30)
    assert (draws.counts.sum(axis=1) == 30).all()
    assert (draws.seconds, draws.block) == (DAY, 3)
    short = draw_days(np.arange(0.0, 24 * 3600.0, 60.0))
    assert short.counts.shape[1] == 24
    assert not len(draw_days(np.zeros(5)).counts)


def outcome(name: str, base: Outcome, change: np.ndarray) -> Outcome:
    return Outcome(name, base.jct + change, base.wait + change, base.started + change, 0.5)


def width(interval: FigureInterval) -> float:
    assert interval.low is not None
    assert interval.high is not None
    return interval.high - interval.low


def test_differences_are_paired_and_only_separate_intervals_are_marked() -> None:
    columns = columns_of(month())
    record = recorded_outcome(columns, 8)
    rng = np.random.default_rng(1)
    noise = rng.normal(0.0, 300.0, len(record.jct))
    base = outcome("backfill", record, np.zeros(len(noise)))
    faster = outcome("faster", record, np.minimum(-600.0 + noise, 0.0))
    same = outcome("same", record, noise)
    advice = advice_of(columns, record, [base, faster, same], "backfill")
    rows = {row.name: row for row in advice.policies}
    change = rows["faster"].versus_baseline["mean_jct"]
    own = rows["faster"].figures["mean_jct"]
    assert change.excludes_zero
    assert change.value == pytest.approx(float(np.minimum(-600.0 + noise, 0.0).mean()))
    assert width(change) < 0.2 * width(own)  # common variation cancels
    assert not rows["same"].versus_baseline["mean_jct"].excludes_zero
    assert (rows["backfill"].versus_baseline["mean_jct"].low, advice.best["mean_jct"]) == (0.0, "faster")
    rival = outcome("rival", record, np.minimum(-610.0 + rng.normal(0.0, 300.0, len(noise)), 0.0))
    both = advice_of(columns, record, [base, faster, rival], "backfill")
    assert "mean_jct" not in both.best
    assert "none is marked as best" in finding_sentences(both)[1]


def test_figures_are_means_and_quantiles_over_jobs_that_all_finished() -> None:
    columns = columns_of(month())
    record = recorded_outcome(columns, 8)
    lost = np.zeros(len(record.jct))
    lost[:100] = np.nan
    advice = advice_of(columns, record, [outcome("backfill", record, lost)], "backfill")
    kept = record.wait[100:]
    figures = advice.record.figures
    assert (advice.compared, advice.policies[0].unfinished) == (500, 100)
    assert figures["mean_wait"].value == pytest.approx(kept.mean())
    assert figures["tail_wait"].value == pytest.approx(np.quantile(kept, 0.95), rel=0.02)
    worst = max(
        float(np.mean((kept / HOUR + 1.0)[columns.tenant[100:] == t])) for t in range(3)
    )  # every job runs for an hour
    assert figures["worst_tenant"].value == pytest.approx(worst)


def test_calibration_says_how_far_the_baseline_is_from_the_record() -> None:
    columns = columns_of(month())
    record = recorded_outcome(columns, 8)
    exact = advice_of(columns, record, [outcome("backfill", record, np.zeros(len(record.jct)))], "backfill")
    assert exact.calibration["started_within_10_min"] == 1.0
    assert exact.calibration["rank_correlation"] == pytest.approx(1.0)
    far = advice_of(columns, record, [outcome("backfill", record, np.full(len(record.jct), 9 * HOUR))], "backfill")
    assert far.calibration["started_within_10_min"] == 0.0
    assert "differ by more than a factor of two" in finding_sentences(far)[2]
    assert "factor of two" not in finding_sentences(exact)[2]


def test_times_are_words() -> None:
    assert [time_text(seconds) for seconds in (30.0, 600.0, 4 * HOUR, 5 * DAY)] == [
        "30.0 s",
        "10.0 min",
        "4.00 h",
        "5.00 d",
    ]
