"""The carried table of throughput curves."""

from dataclasses import replace

from shoal.core.arrays import Floats
from shoal.core.snapshot import Snapshot
from shoal.policy.elastic.curves import CurveTable, curve_table
from shoal.testing.builders import job, snapshot


def by_job(moment: Snapshot, table: CurveTable) -> dict[str, Floats]:
    return {name: table.curves[c] for name, c in zip(moment.ids, table.index[:, 0].tolist(), strict=True) if c >= 0}


def test_a_carried_curve_is_used_until_the_job_is_resized_and_new_jobs_get_theirs() -> None:
    first = snapshot([job("a", 0, 1, max_gpus=4), job("b", 0, 2, max_gpus=4), job("rigid", 0, 2)], "gpu:2x8")
    before = curve_table(first, None)
    rows = [job("a", 0, 1, max_gpus=4), job("b", 0, 2, max_gpus=8), job("rigid", 0, 2), job("c", 0, 4, max_gpus=8)]
    then = replace(snapshot(rows, "gpu:2x8"), perf=first.perf)
    carried, anew = curve_table(then, before), curve_table(then, None)
    assert {name: curve.tolist() for name, curve in by_job(then, carried).items()} == {
        name: curve.tolist() for name, curve in by_job(then, anew).items()
    }
    assert by_job(then, carried)["a"] is by_job(first, before)["a"]
    assert [len(curve) for curve in by_job(then, carried).values()] == [5, 9, 9]


def test_a_table_of_another_speed_model_is_not_used() -> None:
    rows = [job("a", 0, 1, max_gpus=4)]
    first, second = snapshot(rows, "gpu:1x8"), snapshot(rows, "gpu:1x2")
    table = curve_table(second, curve_table(first, None))
    assert table.curves[table.index[0, 0]].tolist() == [0.0, 1.0, 2.0, 0.0, 0.0]
