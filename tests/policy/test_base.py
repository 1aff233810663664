"""The pieces that policies are built from, by hand-worked cases and against plain loops."""

from math import inf, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.core.reasons import FITS, IN_TURN, LEASED, NO_KIND, NO_ROOM, OUTRANKED, TOO_LARGE, Reason
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Placement
from shoal.policy.base import (
    all_fit,
    any_on_slow_kind,
    check_round,
    current_round,
    explained,
    infeasible_refusals,
    next_review,
    next_second,
    prefer_kind,
    ranked_verdicts,
    round_end,
    serve,
    serve_ascending,
)
from shoal.testing.builders import job, snapshot

KINDS = "v100:1x4,k80:1x4"


def jobs_of(*gangs: int, cluster: str = "gpu:1x8") -> Snapshot:
    return snapshot([job(f"j{i}", gpus=gang) for i, gang in enumerate(gangs)], cluster)


# ── serving ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _one_by_one(
    free: list[int], gangs: list[int], preferences: list[list[float]], order: list[int], *, strict: bool
) -> tuple[list[int], list[int], int, list[int]]:
    """What `serve` promises on several kinds, job after job: gangs granted, kinds, the last served, GPUs left."""
    granted, kinds, last = [0] * len(gangs), [-1] * len(gangs), -1
    for i in order:
        fitting = [k for k, rank in enumerate(preferences[i]) if rank > 0 and free[k] >= gangs[i]]
        if fitting:
            kinds[i] = max(fitting, key=lambda k: (preferences[i][k], -k))
            granted[i], last = gangs[i], i
            free[kinds[i]] -= gangs[i]
        elif strict:
            break
    return granted, kinds, last, free


_NAMES = ("v100", "p100", "k80")


@given(
    rows=st.lists(
        st.tuples(st.integers(1, 6), st.lists(st.sampled_from([1.0, 2.0, 3.0, inf]), min_size=3, max_size=3)),
        max_size=120,
    ),
    usable=st.lists(st.sampled_from([(0,), (1,), (2,), (0, 2), (0, 1, 2)]), min_size=1),
    strict=st.booleans(),
    turned=st.booleans(),
)
def test_serving_several_kinds_is_serving_one_job_after_the_other(
    rows: list[tuple[int, list[float]]], usable: list[tuple[int, ...]], strict: bool, turned: bool
) -> None:
    may = [usable[i % len(usable)] for i in range(len(rows))]
    named = [tuple(_NAMES[k] for k in kinds) for kinds in may]
    jobs = [job(f"j{i}", gpus=gang, kinds=named[i]) for i, (gang, _) in enumerate(rows)]
    moment = snapshot(jobs, "v100:3x4,p100:2x4,k80:1x4")
    wants = np.array([wish for _, wish in rows]).reshape(-1, 3)
    order = np.arange(len(rows))[:: -1 if turned else 1]
    found = serve(moment, order, strict=strict, preferences=wants)
    able = [[rank if k in may[i] else 0.0 for k, rank in enumerate(row)] for i, row in enumerate(wants.tolist())]
    expected = _one_by_one([12, 8, 4], [gang for gang, _ in rows], able, order.tolist(), strict=strict)
    assert found.kinds is not None
    free = expected[3]
    assert (found.gpus.tolist(), found.kinds.tolist(), found.last) == expected[:3]
    assert (found.free, found.most_free) == (sum(free), max(free))


@pytest.mark.parametrize(("gangs", "fits"), [((4, 4), True), ((4, 4, 1), False), ((), True), ((8,), True)])
def test_all_fit_grants_every_gang_only_if_the_sum_does_not_exceed_the_cluster(
    gangs: tuple[int, ...], fits: bool
) -> None:
    verdicts = all_fit(jobs_of(*gangs))
    assert (verdicts is not None) is fits
    if verdicts is not None:
        assert verdicts.gpus.tolist() == list(gangs)
        assert all(verdicts.reason(i) == Reason(FITS, (sum(gangs), 8)) for i in range(len(gangs)))


def test_all_fit_says_nothing_of_several_kinds_or_of_a_job_that_cannot_run() -> None:
    assert all_fit(jobs_of(1, cluster=KINDS)) is None
    assert all_fit(snapshot([job("a"), job("b", kinds=("tpu",))], "gpu:1x8")) is None


@pytest.mark.parametrize(
    ("gangs", "strict", "granted", "last", "free"),
    [
        ((4, 6, 2, 2), False, [4, 0, 2, 2], 3, 0),
        ((4, 6, 2, 2), True, [4, 0, 0, 0], 0, 4),
        ((6, 3, 2), False, [6, 0, 2], 2, 0),
        ((6, 3, 3), False, [6, 0, 0], 0, 2),
        ((9, 1), False, [0, 1], 1, 7),
        ((9, 1), True, [0, 1], 1, 7),
        ((), False, [], -1, 8),
        ((9,), False, [0], -1, 8),
    ],
)
def test_jobs_get_their_whole_gang_in_order_or_nothing(
    gangs: tuple[int, ...], strict: bool, granted: list[int], last: int, free: int
) -> None:
    served = serve(jobs_of(*gangs), np.arange(len(gangs)), strict=strict)
    assert (served.gpus.tolist(), served.last, served.free, served.most_free) == (granted, last, free, free)
    assert served.kinds is None


def test_on_several_kinds_a_job_takes_the_kind_it_prefers_that_has_enough_free_gpus() -> None:
    moment = jobs_of(3, 2, 2, 4, 1, cluster=KINDS)
    wants = np.array([[2.0, 1.0], [2.0, 1.0], [1.0, 2.0], [2.0, 1.0], [1.0, 2.0]])
    served = serve(moment, np.arange(5), preferences=wants)
    assert served.kinds is not None
    assert served.gpus.tolist() == [3, 2, 2, 0, 1]
    assert served.kinds.tolist() == [0, 1, 1, -1, 0]
    assert (served.last, served.free, served.most_free) == (4, 0, 0)
    strict = serve(moment, np.arange(5), strict=True, preferences=wants)
    assert strict.gpus.tolist() == [3, 2, 2, 0, 0]
    assert (strict.last, strict.free, strict.most_free) == (2, 1, 1)


def test_a_kind_on_which_a_job_cannot_run_is_never_taken() -> None:
    moment = snapshot([job("a", gpus=2, kinds=("k80",)), job("b", gpus=4)], KINDS)
    served = serve(moment, np.arange(2), preferences=np.array([[9.0, 1.0], [1.0, 9.0]]))
    assert served.kinds is not None
    assert served.kinds.tolist() == [1, 0]


def test_preferences_below_one_count_as_any_other_in_a_long_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.policy.base._PART", 1)
    moment = jobs_of(3, 3, 1, 1, cluster=KINDS)
    wants = np.array([[0.2, 0.1], [0.2, 0.1], [0.0, 0.1], [0.2, 0.1]])
    served = serve(moment, np.arange(4), preferences=wants)
    assert served.kinds is not None
    assert (served.gpus.tolist(), served.kinds.tolist()) == ([3, 3, 1, 1], [0, 1, 1, 0])


def two_resnets(**more: Any) -> Snapshot:
    """Two jobs that are faster on a V100 than on a K80; the first runs on the K80."""
    rows = [job(name, model="ResNet-50", batch_size=64, work=1e6) for name in "ab"]
    return snapshot(rows, KINDS, held={"a": Placement(((1, 1),))}, now=10.0, **more)


def test_by_default_a_running_job_stays_and_another_takes_its_fastest_kind() -> None:
    moment = two_resnets()
    wants = prefer_kind(moment, moment.columns.kind)
    assert wants[0, 1] == inf
    assert wants[1].tolist() == moment.columns.speeds[1].tolist()
    served = serve(moment, np.arange(2))
    assert served.kinds is not None
    assert served.kinds.tolist() == [1, 0]


@example([(4, 0), (1, 0), (3, 0)], {0, 2})
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), max_size=60), st.sets(st.integers(0, 59), max_size=3))
def test_ascending_service_is_service_in_the_sorted_order_after_the_first(
    rows: list[tuple[int, int]], chosen: set[int]
) -> None:
    moment = jobs_of(*(gang for gang, _ in rows), cluster="gpu:1x6")
    key = np.array([value for _, value in rows], dtype=np.float64)
    first = np.array(sorted(i for i in chosen if i < len(rows)), dtype=np.intp)
    rest = sorted((i for i in range(len(rows)) if i not in chosen), key=lambda i: (key[i], i))
    expected = serve(moment, np.array([*first.tolist(), *rest], dtype=np.intp))
    found = serve_ascending(moment, key, first)
    assert found.gpus.tolist() == expected.gpus.tolist()
    assert found.free == expected.free


# ── moves between kinds ───────────────────────────────────────────────────────────────────────────────────────────


def test_only_a_job_that_runs_on_a_slow_kind_counts_as_such() -> None:
    assert any_on_slow_kind(two_resnets())
    assert not any_on_slow_kind(snapshot([job("a")], KINDS, held={"a": 1}))
    assert not any_on_slow_kind(jobs_of(1, 1, cluster=KINDS))


def test_the_kind_preferred_may_be_the_first_and_jobs_without_one_keep_their_speeds() -> None:
    moment = jobs_of(1, 1, 1, cluster=KINDS)
    fast, slow = moment.columns.speeds[0].tolist()
    wants = prefer_kind(moment, np.array([0, -1, 1], dtype=np.int8))
    assert wants.tolist() == [[inf, slow], [fast, slow], [fast, inf]]


# ── verdicts ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_ranked_verdicts_give_keys_gangs_and_leases() -> None:
    moment = jobs_of(3, 2, 4, 4, 9)
    key, leased = np.array([5.0, 1.0, 1.0, 2.0, 3.0]), np.array([True, False, False, False, False])
    served = serve(moment, np.array([0, 1, 2, 3, 4]))
    verdicts = ranked_verdicts(moment, served, "age", key, leased=leased, until=70.0)
    assert [verdicts.reason(i) for i in range(5)] == [
        Reason(LEASED, (70.0,)),
        Reason(IN_TURN, ("age", 1.0, 1.0)),
        Reason(NO_ROOM, (4, 3)),
        Reason(OUTRANKED, ("age", 2.0, 1.0)),
        Reason(TOO_LARGE, (9, 8)),
    ]


def test_without_a_job_served_in_turn_no_key_outranks_another() -> None:
    moment = jobs_of(8, 8)
    key, leased = np.array([5.0, 9.0]), np.array([True, False])
    served = serve(moment, np.array([0, 1]))
    assert ranked_verdicts(moment, served, "age", key, leased=leased).reason(1) == Reason(NO_ROOM, (8, 0))
    unleased = ranked_verdicts(moment, served, "age", key)
    assert unleased.reason(0) == Reason(IN_TURN, ("age", 5.0, 5.0))
    assert unleased.reason(1) == Reason(OUTRANKED, ("age", 9.0, 5.0))


def test_a_job_that_cannot_run_here_is_refused_for_its_own_reason() -> None:
    rows = [job("a", gpus=4), job("wide", gpus=6), job("tpu", kinds=("tpu",)), job("fits"), job("too wide", gpus=9)]
    moment = snapshot(rows, "v100:2x4,k80:1x2", down=[0])
    refusals = infeasible_refusals(moment, np.zeros(5, dtype=np.int32))
    assert {i: verdict.reason for i, verdict in refusals.items()} == {
        1: Reason(TOO_LARGE, (6, 4)),
        2: Reason(NO_KIND, ("v100, k80",)),
        4: Reason(TOO_LARGE, (9, 4)),
    }
    granted = np.array([0, 0, 1, 0, 0], dtype=np.int32)
    assert set(infeasible_refusals(moment, granted)) == {1, 4}
    verdicts = explained(moment, granted, np.full(5, NO_ROOM.code), {NO_ROOM: (1, 0)})
    assert [verdicts.reason(i).template for i in range(5)] == [NO_ROOM, TOO_LARGE, NO_ROOM, NO_ROOM, TOO_LARGE]
    assert infeasible_refusals(jobs_of(1, 2), np.zeros(2, dtype=np.int32)) == {}


def test_where_all_nodes_are_down_a_job_without_a_kind_is_too_large_for_no_gpus() -> None:
    moment = snapshot([job("wide", gpus=9, kinds=("tpu",))], "v100:2x4", down=[0, 1])
    refusals = infeasible_refusals(moment, np.zeros(1, dtype=np.int32))
    assert refusals[0].reason == Reason(TOO_LARGE, (9, 0))


# ── times of review ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("now", "seconds", "end"), [(0.0, 60.0, 60.0), (59.9, 60.0, 60.0), (60.0, 60.0, 120.0), (2.1, 0.7, 2.8)]
)
def test_a_round_ends_after_now(now: float, seconds: float, end: float) -> None:
    assert round_end(now, seconds) == pytest.approx(end)
    assert round_end(now, seconds) > now


@given(st.floats(0.0, 1e12), st.floats(1.0, 1e6))
def test_a_round_never_ends_at_or_before_now(now: float, seconds: float) -> None:
    assert round_end(now, seconds) > now


@pytest.mark.parametrize(
    ("carry", "end", "kept"),
    [(90.0, 90.0, [True, False]), (50.0, 100.0, [False, False]), (None, 100.0, [False, False])],
)
def test_a_carried_round_goes_on_until_it_is_over(carry: float | None, end: float, kept: list[bool]) -> None:
    moment = snapshot([job("a"), job("b")], held={"a": 1}, now=50.0, carry=carry)
    found, keeping = current_round(moment, 100.0)
    assert (found, keeping.tolist()) == (end, kept)


@pytest.mark.parametrize(
    ("carry", "expected"),
    [
        (None, (True, 150.0)),
        (50.0, (True, 150.0)),
        (50.1, (False, 50.1)),
        (150.0, (False, 150.0)),
        (150.1, (True, 150.0)),
    ],
)
def test_a_review_is_due_unless_a_later_one_within_the_interval_is_carried(
    carry: float | None, expected: tuple[bool, float]
) -> None:
    assert next_review(carry, 50.0, 100.0) == expected


@pytest.mark.parametrize(
    ("moment", "now", "expected"),
    [(9.2, 5.0, 10.0), (9.0, 5.0, 9.0), (3.0, 5.0, 6.0), (5.0, 5.5, 6.0), (5.2, 5.1, 6.0), (inf, 5.0, inf)],
)
def test_the_next_second_is_whole_and_after_now(moment: float, now: float, expected: float) -> None:
    assert next_second(moment, now) == expected


@pytest.mark.parametrize("seconds", [0.99, 0.0, -1.0, inf, nan])
def test_a_length_of_time_below_a_second_or_without_end_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match=f"quantum must be a finite number of seconds, at least 1, not {seconds}"):
        check_round(seconds, "quantum")
    with pytest.raises(ValueError, match=r"^round must be"):
        check_round(seconds)


def test_one_second_is_long_enough() -> None:
    check_round(1.0)


def test_explained_verdicts_keep_the_kinds_that_were_chosen() -> None:
    moment = jobs_of(1, 1, cluster=KINDS)
    kinds = np.array([1, 0], dtype=np.int8)
    verdicts = explained(moment, np.array([1, 1]), np.full(2, FITS.code), {FITS: (2, 8)}, kinds)
    assert verdicts.kinds is not None
    assert verdicts.kinds.tolist() == [1, 0]
