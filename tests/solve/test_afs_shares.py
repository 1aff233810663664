"""Apathetic Future Share: equal to the paper's Algorithm 1 written out, and true to what its analysis says."""

from collections.abc import Sequence
from itertools import permutations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shoal.solve.afs_shares import Gains, with_lengths, without_lengths

STEPS = st.floats(0.01, 0.99)
CURVES = st.lists(STEPS, min_size=1, max_size=7).map(
    lambda steps: [0.0, 1.0, *(1.0 + sum(sorted(steps, reverse=True)[: k + 1]) for k in range(len(steps)))]
)
"""Sublinear: from 1 up by less and less."""

UNEVEN = st.lists(st.floats(0.5, 4.0), min_size=1, max_size=7).map(lambda rates: [0.0, *rates])
"""Measured, as it were: some GPUs make it slower."""


def inequality_3(a: tuple[float, float], b: tuple[float, float]) -> bool:
    """(3) for (p, p') of the job done sooner and the one done later."""
    return (b[1] - b[0]) / b[1] > (a[1] - a[0]) / a[0]


def algorithm_1(curves: Sequence[Sequence[float]], work: Sequence[float], counts: list[int], free: int) -> list[int]:
    """Stage two as the paper writes it, jobs being scanned from the longest to the shortest."""
    for _ in range(free):
        able = [i for i, k in enumerate(counts) if k + 1 < len(curves[i]) and curves[i][k + 1] > curves[i][k]]
        if not able:
            break

        def length(i: int) -> float:
            return work[i] / curves[i][counts[i]]

        able.sort(key=lambda i: (-length(i), i))
        star = able[0]
        for j in able[1:]:
            a, b = star, j
            if length(a) >= length(b):
                a, b = b, a
            p = {i: (curves[i][counts[i]], curves[i][counts[i] + 1]) for i in (a, b)}
            star = b if inequality_3(p[a], p[b]) else a
        counts[star] += 1
    return counts


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.one_of(CURVES, UNEVEN), st.sampled_from([1.0, 2.0, 3.0, 5.0, 50.0])), min_size=1, max_size=7),
    st.integers(0, 25),
)
def test_with_lengths_it_is_algorithm_1_scanned_from_the_longest(
    jobs: list[tuple[list[float], float]], free: int
) -> None:
    curves, work = [c for c, _ in jobs], [w for _, w in jobs]
    ones = [1] * len(jobs)
    assert with_lengths([Gains.of(c) for c in curves], work, ones, free) == algorithm_1(curves, work, [*ones], free)


def test_the_comparison_is_not_transitive_and_the_documented_scan_settles_it() -> None:
    # Lengths A < B < C and one more GPU worth 1.30, 1.42, 1.667: A goes before B, B before C, and C before A.
    a, b, c = ((1.0, f) for f in (1.30, 1.42, 1.667))
    assert not inequality_3(a, b)
    assert not inequality_3(b, c)
    assert inequality_3(a, c)
    curves = [[0.0, 1.0, f] for f in (1.30, 1.42, 1.667)]
    assert with_lengths([Gains.of(curve) for curve in curves], [1.0, 2.0, 3.0], [1, 1, 1], 1) == [2, 1, 1]


@given(st.tuples(STEPS, STEPS), st.tuples(st.floats(0.1, 10.0), st.floats(0.1, 10.0)))
def test_inequality_3_is_the_sign_of_1_and_2_when_the_future_share_is_todays(
    gains: tuple[float, float], work: tuple[float, float]
) -> None:
    (p_a, more_a), (p_b, more_b) = ((1.0, 1.0 + g) for g in gains)
    w_a, w_b = work
    later_b, later_a = more_b, p_a  # p'_{b,2} = p'_{b,1} and p'_{a,2} = p_{a,1}: the apathetic assumption
    assume(w_a / p_a < w_b / p_b)  # a is the one done first
    if w_a / p_a < w_b / more_b:
        gain = w_a / more_a - w_a / p_a + w_a / (2 * later_b) * (more_b / p_a - p_b / more_a)
    else:
        gain = w_a / more_a - w_b / more_b
        gain += p_b / (2 * later_b) * (w_b / p_b - w_a / more_a) - p_a / (2 * later_a) * (w_a / p_a - w_b / more_b)
    assume(abs(gain) > 1e-9)
    assert (gain > 0) == inequality_3((p_a, more_a), (p_b, more_b))


@settings(max_examples=200, deadline=None)
@given(st.lists(CURVES, min_size=1, max_size=6), st.integers(1, 20))
def test_without_lengths_every_unit_goes_to_a_job_that_no_other_goes_before(
    curves: list[list[float]], free: int
) -> None:
    gains, counts = [Gains.of(c) for c in curves], [1] * len(curves)
    for given_before in range(free):
        after = without_lengths(gains, [1] * len(curves), given_before + 1)
        grown = [i for i in range(len(curves)) if after[i] > counts[i]]
        able = [i for i, k in enumerate(counts) if k + 1 < len(curves[i])]
        assert len(grown) == (1 if able else 0)
        for top in grown:
            p = {i: (curves[i][counts[i]], curves[i][counts[i] + 1]) for i in able}
            assert not any(inequality_3(p[top], p[i]) for i in able if i != top)
        counts = after


@settings(max_examples=100, deadline=None)
@given(st.lists(UNEVEN, min_size=1, max_size=6), st.integers(0, 30))
def test_a_unit_that_does_not_raise_throughput_is_never_given(curves: list[list[float]], free: int) -> None:
    gains, ones = [Gains.of(c) for c in curves], [1] * len(curves)
    for counts in (without_lengths(gains, ones, free), with_lengths(gains, [1.0] * len(curves), ones, free)):
        assert sum(counts) <= len(curves) + free
        for curve, k, known in zip(curves, counts, gains, strict=True):
            assert all(curve[n + 1] > curve[n] for n in range(1, k))
            assert k <= known.useful(1)
        if sum(counts) < len(curves) + free:
            assert counts == [known.useful(1) for known in gains]


def test_linear_jobs_that_are_alike_get_equal_shares_without_lengths() -> None:
    linear = Gains.of([float(k) for k in range(9)])
    for order in set(permutations((1, 1, 2))):
        assert sorted(without_lengths([linear] * 3, order, 8)) == [4, 4, 4]


def test_of_two_linear_jobs_the_shorter_gets_more_but_not_everything() -> None:
    # The longer's second GPU is half of what it would have. The shorter's second is all of what it has, its third half,
    # and 1/2 > 1/2 does not hold; its fourth is a third, and there the longer goes first.
    linear = Gains.of([float(k) for k in range(9)])
    shares = [with_lengths([linear, linear], [10.0, 1.0], [1, 1], free) for free in (1, 2, 3)]
    assert shares == [[1, 2], [1, 3], [2, 3]]


def test_gains_are_both_sides_of_inequality_3() -> None:
    gains = Gains.of([0.0, 2.0, 3.0, 3.0])
    assert gains.later[1] == pytest.approx(1 / 3)
    assert gains.sooner[1] == pytest.approx(1 / 2)
    assert gains.useful(1) == 2


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.one_of(CURVES, UNEVEN), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([1.0, 2.0, 3.0, 5.0, 50.0])), min_size=1, max_size=9),
    st.integers(0, 40),
)
def test_jobs_that_share_a_curve_get_what_they_would_get_with_equal_ones(
    curves: list[list[float]], jobs: list[tuple[int, float]], free: int
) -> None:
    of, work, ones = [c % len(curves) for c, _ in jobs], [w for _, w in jobs], [1] * len(jobs)
    shared = [Gains.of(curve) for curve in curves]
    known, apart = [shared[c] for c in of], [Gains.of(curves[c]) for c in of]
    assert with_lengths(known, work, ones, free) == with_lengths(apart, work, ones, free)
    assert without_lengths(known, ones, free) == without_lengths(apart, ones, free)
