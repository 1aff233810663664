"""Max sum throughput: by hand, and against every other assignment."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.arrays import Floats
from shoal.core.commands import Start
from shoal.core.decision import Grant
from shoal.core.events import BatchChanged, JobStarted, JobSubmitted
from shoal.core.goodput import GoodputReport
from shoal.core.job import BatchSetting, JobSpec
from shoal.core.snapshot import Estimate, JobView, Snapshot
from shoal.core.topology import Placement, Topology, parse_cluster
from shoal.engine.state import State
from shoal.policy.base import round_end
from shoal.policy.classic.mst import Mst
from shoal.testing.builders import job, simulate, snapshot


class _Table:
    """A model of speed that knows a number for each job and kind, and nothing else."""

    def __init__(self, speeds: dict[str, list[float]]) -> None:
        self.table = speeds

    def speeds(self, spec: JobSpec, batch_size: int | None = None) -> Floats:
        return np.array(self.table[spec.id])

    def rate(self, job: JobView, placement: Placement, batch: BatchSetting | None = None) -> Estimate:
        raise NotImplementedError

    def curve(self, job: JobView, kind: str) -> Floats:
        raise NotImplementedError

    def colocated(self, a: JobView, b: JobView) -> tuple[float, float]:
        raise NotImplementedError

    def goodput(self, job: JobView) -> GoodputReport | None:
        raise NotImplementedError

    def on(self, cluster: Topology) -> "_Table":
        raise NotImplementedError


def moment(cluster: str, speeds: dict[str, list[float]], gpus: dict[str, int] | None = None) -> Snapshot:
    """Jobs that wait, with these speeds by kind."""
    state = State(parse_cluster(cluster), _Table(speeds))
    rows = [job(name, 0, (gpus or {}).get(name, 1)) for name in speeds]
    state.apply_events(0.0, [JobSubmitted(0.0, row.spec()) for row in rows])
    return state.freeze()


def kinds(policy: Mst, at: Snapshot) -> dict[str, str | None]:
    """The kind each job got."""
    verdicts = policy.decide(at).verdicts
    return {name: v.kind for name, v in verdicts.items() if isinstance(v, Grant)}


def test_each_kind_goes_to_whom_it_helps_most() -> None:
    # On one GPU of each kind: a is 10 times as fast on the first, b twice. a there and b on the second make
    # 10/5.5 + 1/1.5 = 2.48 times average; the other way round 1/5.5 + 2/1.5 = 1.52.
    assert kinds(Mst(), moment("fast:1x1,slow:1x1", {"b": [2, 1], "a": [10, 1]})) == {"a": "fast", "b": "slow"}


def test_an_exchange_repairs_what_greed_got_wrong() -> None:
    # In their own units a (100, 99) takes the first GPU before b (98, 1): 101. Exchanged: 99 + 98 = 197.
    at = moment("fast:1x1,slow:1x1", {"a": [100, 99], "b": [98, 1]})
    assert kinds(Mst(normalised=False), at) == {"a": "slow", "b": "fast"}


def test_steps_per_second_are_counted_at_the_batch_size_of_the_moment() -> None:
    # Both make 600 samples a second: 10 steps of 60, or 20 of 30. Once the second trains at 120, its 5 are the fewer.
    state = State(parse_cluster("gpu:1x1"), _Table({"large": [600], "small": [600]}))
    rows = [replace(job(name, 0).spec(), batch_size=size) for name, size in (("large", 60), ("small", 30))]
    state.apply_events(0.0, [JobSubmitted(0.0, spec) for spec in rows])
    assert list(kinds(Mst(normalised=False), state.freeze())) == ["small"]
    state.apply_commands([Start(1, 1, Placement(((0, 1),)))])
    state.apply_events(60.0, [JobStarted(0.0, 1, 1, 600.0, 0.0), BatchChanged(60.0, 1, 1, 600.0, 3e4, 120)])
    assert list(kinds(Mst(normalised=False), state.freeze())) == ["large"]


def test_own_units_favour_whoever_counts_small_samples() -> None:
    at = moment("gpu:1x1", {"words": [5000], "images": [60]})
    assert list(kinds(Mst(normalised=False), at)) == ["words"]
    at = moment("gpu:1x1", {"images": [60], "words": [5000]})
    assert list(kinds(Mst(), at)) == ["images"]  # normalised they are equal, and the first comes first


def test_throughput_counts_per_gpu_of_the_gang() -> None:
    # In its own units the gang of 4 makes 8, 2 a GPU; the single ones 3 a GPU: 3 + 3 + 3 = 9 beats 8.
    at = moment("gpu:1x4", {"wide": [8], "a": [3], "b": [3], "c": [3]}, {"wide": 4})
    assert sorted(kinds(Mst(normalised=False), at)) == ["a", "b", "c"]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_single_gpu_jobs_on_two_kinds_that_all_fit_are_placed_optimally(data: st.DataObject) -> None:
    room = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    speed = st.sampled_from([0.5, 1.0, 2.0, 3.0, 7.0])
    rows = data.draw(st.lists(st.tuples(speed, speed), min_size=1, max_size=sum(room)))
    normalised = data.draw(st.booleans())
    at = moment(f"u:1x{room[0]},v:1x{room[1]}", {f"j{i}": list(row) for i, row in enumerate(rows)})
    mean = [(row[0] * room[0] + row[1] * room[1]) / sum(room) if normalised else 1.0 for row in rows]
    got = kinds(Mst(normalised), at)
    total = sum(row["uv".index(got[f"j{i}"] or "")] / m for i, (row, m) in enumerate(zip(rows, mean, strict=True)))
    best = max(
        sum(row[k] / m for row, k, m in zip(rows, choice, mean, strict=True))
        for choice in product((0, 1), repeat=len(rows))
        if choice.count(0) <= room[0] and choice.count(1) <= room[1]
    )
    assert total == pytest.approx(best)


def test_equals_take_turns_by_the_hour() -> None:
    # 2 GPUs, equal jobs: a and b run first. At 3600 they have run an hour, c nothing: c runs, and of the other two a,
    # the earlier. c is done at 3700 and b goes on: its last 1400 s end at 5100.
    rows = [job("a", 0, 1, 5000), job("b", 0, 1, 5000), job("c", 0, 1, 100)]
    run = simulate(Mst(), rows, "gpu:1x2")
    assert run.completed == {"c": 3700.0, "a": 5000.0, "b": 5100.0}
    assert run.starts == {"a": 1, "b": 2, "c": 1}


def test_whoever_runs_keeps_its_gpus_until_the_round_ends() -> None:
    # On a k80 old runs at half its speed on a v100, new at a ninth: the v100 should be new's, but not before 120.
    rows = [job("old", 0, 1, model="A3C", work=1e6), job("new", 30, 1, model="CycleGAN", work=1e6)]
    cluster, policy = "v100:1x1,k80:1x1", Mst()
    carry = policy.decide(snapshot(rows[:1], cluster)).carry
    inside = snapshot(rows, cluster, held={"old": 1}, now=30.0, carry=carry)
    after = snapshot(rows, cluster, held={"old": 1}, now=120.0, carry=carry)
    assert kinds(policy, inside) == {"old": "v100", "new": "k80"}
    assert kinds(policy, after) == {"old": "k80", "new": "v100"}


@given(st.floats(0, 2e9), st.floats(1.0, 1e5))
def test_a_round_always_ends_after_now_and_within_its_length(now: float, seconds: float) -> None:
    end = round_end(now, seconds)
    assert now < end <= now + 2 * seconds


@pytest.mark.parametrize("value", [0.0, 0.5, -3.0, float("nan"), float("inf")])
def test_a_round_out_of_range_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="round"):
        Mst(round=value)
