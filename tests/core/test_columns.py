"""Columns of a snapshot: parts of them, and copies with other values, leave the original as it was."""

import numpy as np
import pytest

from shoal.core.columns import Columns
from shoal.core.snapshot import Snapshot
from shoal.testing.builders import job, snapshot

NAMES = (
    "submitted",
    "gpus",
    "min_gpus",
    "max_gpus",
    "weight",
    "work",
    "deadline",
    "tenant",
    "app",
    "state",
    "held",
    "kind",
    "incarnation",
    "seats",
    "partner",
    "starts",
    "crashes",
    "batch_size",
    "measured",
    "since",
    "rate",
    "attained",
    "run_seconds",
    "done",
    "speeds",
    "best_speed",
    "remaining",
    "remaining_seconds",
)


def four() -> Snapshot:
    rows = [
        job("a", 0.0, 2, 100, tenant="ann", weight=2.0, deadline=900.0),
        job("b", 1.0, 2, 200, tenant="bob", app="x"),
        job("c", 2.0, 1, 300, tenant="ann", kinds=("k80",), min_gpus=1, max_gpus=2),
        job("d", 3.0, 4, 400, tenant="cat", app="x"),
    ]
    return snapshot(rows, "v100:1x4,k80:1x4", now=50.0, held={"a": 2, "c": 1})


def values(columns: Columns) -> dict[str, object]:
    return {name: getattr(columns, name).tolist() for name in NAMES}


@pytest.mark.parametrize("read_before", [True, False])
@pytest.mark.parametrize("keep", [[0, 1, 2, 3], [1, 2], [3], []])
def test_a_subset_has_the_values_of_its_jobs_in_every_column(keep: list[int], read_before: bool) -> None:
    whole = four().columns
    expected = {name: np.asarray(column)[keep].tolist() for name, column in values(four().columns).items()}
    if read_before:
        values(whole)
    part = whole.subset(np.array(keep, dtype=np.int64))
    assert (part.now, part.rows.tolist(), len(part)) == (50.0, keep, len(keep))
    assert values(part) == expected
    assert values(whole) == values(four().columns)
    assert not part.rows.flags.writeable
    assert not any(getattr(part, name).flags.writeable for name in NAMES)


def test_a_subset_of_a_subset_counts_positions_within_the_first() -> None:
    part = four().columns.subset(np.array([1, 2, 3])).subset(np.array([0, 2]))
    assert (part.rows.tolist(), part.gpus.tolist(), part.held.tolist()) == ([1, 3], [2, 4], [0, 0])


def test_a_job_whose_partner_is_left_out_of_a_subset_has_none() -> None:
    rows = [job("z", gpus=4), *(job(name) for name in "abc")]
    whole = snapshot(rows, "v100:2x4", held={"a": 1}, sharing={"b": "a"}).columns
    assert whole.partner.tolist() == [-1, 2, 1, -1]
    for keep, partners in (([1, 2], [2, 1]), ([0, 1], [-1, -1]), ([2, 3], [-1, -1])):
        part = whole.subset(np.array(keep))
        assert (part.partner.tolist(), str(part.partner.dtype)) == (partners, "int32")
    assert whole.partner.tolist() == [-1, 2, 1, -1]


@pytest.mark.parametrize("read_before", [True, False])
def test_another_declared_work_changes_what_remains_and_nothing_else(read_before: bool) -> None:
    whole = four().columns
    before = values(four().columns)
    if read_before:
        values(whole)
    work = np.array([10.0, 20.0, 3000.0, 40.0])
    other = whole.with_work(work)
    work[:] = 0.0
    changed = {"work", "remaining", "remaining_seconds"}
    done, speed = np.asarray(before["done"]), np.asarray(before["best_speed"])
    assert other.work.tolist() == [10.0, 20.0, 3000.0, 40.0]
    remaining = np.maximum(np.array([10.0, 20.0, 3000.0, 40.0]) - done, 0.0)
    assert other.remaining.tolist() == remaining.tolist()
    assert other.remaining_seconds.tolist() == (remaining / speed).tolist()
    assert {k: v for k, v in values(other).items() if k not in changed} == {
        k: v for k, v in before.items() if k not in changed
    }
    assert not other.work.flags.writeable
    assert values(whole) == before
