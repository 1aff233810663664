"""The simulator against an independent one: written job by job, in plain Python, sharing nothing but the numbers.

Placement ``any`` and free restarts, so that only the order of service matters. Completion times must be equal to the
last bit: both add the same floats in the same order, because that is what running, stopping and resuming mean.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.policy.registry import parse_policy
from shoal.testing.builders import job, simulate

SMALL = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "traces" / "small"
POLICIES = ("fifo", "srtf", "srsf")
CAPACITIES = (16, 32, 64)


@dataclass
class Row:
    """One job as the reference sees it; ``done`` is what it had done when it last started or stopped."""

    id: str
    submit: float
    duration: float
    gpus: int
    done: float = 0.0
    since: float | None = None
    end: float | None = None

    def remaining(self, now: float) -> float:
        ran = self.done if self.since is None else self.done + (now - self.since)
        return max(self.duration - ran, 0.0)

    def finishes(self) -> float:
        assert self.since is not None
        return self.since + (self.duration - self.done)


def fifo(live: list[Row], capacity: int, now: float) -> list[Row]:
    """Whoever runs goes on; then strictly in order of arrival until one does not fit."""
    chosen = [row for row in live if row.since is not None]
    free = capacity - sum(row.gpus for row in chosen)
    for row in live:
        if row.since is None:
            if row.gpus > free:
                break
            chosen.append(row)
            free -= row.gpus
    return chosen


def ascending(key: Callable[[Row, float], float]) -> Callable[[list[Row], int, float], list[Row]]:
    """Everyone in ascending key, ties by arrival, who does not fit being passed over; preemptive."""

    def choose(live: list[Row], capacity: int, now: float) -> list[Row]:
        chosen, free = [], capacity
        for row in sorted(live, key=lambda row: key(row, now)):  # sorted is stable, live is in order of arrival
            if row.gpus <= free:
                chosen.append(row)
                free -= row.gpus
        return chosen

    return choose


CHOICES = {
    "fifo": fifo,
    "srtf": ascending(lambda row, now: row.remaining(now)),
    "srsf": ascending(lambda row, now: row.remaining(now) * row.gpus),
}


def reference(rows: Sequence[Row], capacity: int, policy: str) -> dict[str, float]:
    """Completion times by job: at each moment first everything that ends, then everything that comes, then a choice."""
    coming = sorted(rows, key=lambda row: row.submit)
    live: list[Row] = []
    while coming or live:
        ends = [row.finishes() for row in live if row.since is not None]
        now = min(ends + [row.submit for row in coming[:1]])
        for row in live:
            if row.since is not None and row.finishes() == now:
                row.end = now
        live = [row for row in live if row.end is None]
        while coming and coming[0].submit == now:
            live.append(coming.pop(0))
        chosen = CHOICES[policy](live, capacity, now)
        for row in live:
            if row not in chosen and row.since is not None:
                row.done, row.since = row.done + (now - row.since), None
        for row in chosen:
            row.since = now if row.since is None else row.since
    return {row.id: row.end for row in rows if row.end is not None}


def ours(rows: Sequence[Row], capacity: int, policy: str) -> dict[str, float]:
    jobs = [job(row.id, row.submit, row.gpus, row.duration) for row in rows]
    cluster = f"gpu:{capacity // 4}x4" if capacity % 4 == 0 else f"gpu:1x{capacity}"
    return simulate(parse_policy(policy), jobs, cluster, placement="any").completed


def read(path: Path) -> list[Row]:
    return [
        Row(str(row["job_id"]), float(row["submit"]), float(row["duration"]), int(row["num_gpu"]))
        for row in json.loads(path.read_text())
    ]


TRACES = sorted(SMALL.glob("*.json")) if SMALL.is_dir() else []


@pytest.mark.skipif(not TRACES, reason="the public traces are not beside the repository")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_completion_times_on_public_traces_are_exactly_equal(path: Path, policy: str) -> None:
    widest = max(row.gpus for row in read(path))
    for capacity in (c for c in CAPACITIES if c >= widest):
        assert ours(read(path), capacity, policy) == reference(read(path), capacity, policy)


TIMES = st.one_of(st.integers(0, 60).map(float), st.floats(0, 1e5), st.floats(0, 1e-3))
LENGTHS = st.one_of(st.integers(1, 60).map(float), st.floats(1e-6, 1e5))


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=150, deadline=None)
@given(
    capacity=st.sampled_from([1, 3, 4, 8, 16]),
    drawn=st.lists(st.tuples(TIMES, LENGTHS, st.integers(1, 16)), min_size=1, max_size=14),
)
def test_completion_times_of_any_workload_are_exactly_equal(
    policy: str, capacity: int, drawn: list[tuple[float, float, int]]
) -> None:
    def rows() -> list[Row]:
        return [Row(str(i), at, length, min(gpus, capacity)) for i, (at, length, gpus) in enumerate(drawn)]

    assert ours(rows(), capacity, policy) == reference(rows(), capacity, policy)


def test_the_reference_itself_by_hand() -> None:
    # 4 GPUs. a (4 GPUs, 10 s) at 0; b (2, 2 s) at 1; c (2, 8 s) at 1.
    def rows() -> list[Row]:
        return [Row("a", 0.0, 10.0, 4), Row("b", 1.0, 2.0, 2), Row("c", 1.0, 8.0, 2)]

    # fifo: a until 10, then both: b 12, c 18.
    assert reference(rows(), 4, "fifo") == {"a": 10.0, "b": 12.0, "c": 18.0}
    # srtf: at 1 a has 9 left, b 2, c 8: b and c run, a stops. b ends at 3: a (9, 4 GPUs) does not fit beside c.
    # c ends at 9; a resumes and needs 9 more: 18.
    assert reference(rows(), 4, "srtf") == {"a": 18.0, "b": 3.0, "c": 9.0}
    # srsf at 1: a 36, b 4, c 16: the same.
    assert reference(rows(), 4, "srsf") == {"a": 18.0, "b": 3.0, "c": 9.0}
