"""What a gang's progress tells the ring, and how soon."""

from collections.abc import Iterator

import pytest

from shoal.live.rate_tracker import RateTracker

Heard = list[tuple[float, float]]


def told(tracker: RateTracker, heard: Heard) -> Iterator[tuple[float, float, float]]:
    """(when, rate, done) of what is told, as reports (when, done) come in."""
    for at, done in heard:
        rate = tracker.observe(at, done)
        if rate is not None:
            tracker.reported(at, rate, done)
            yield at, rate, done


def steady(rate: float, begin: float, end: float, step: float = 1.0) -> Heard:
    """A report each second of a job that goes by whole steps from ``begin`` on."""
    return [(float(at), step * (max(0.0, at - begin) * rate // step)) for at in range(1, int(end) + 1)]


CASES: dict[str, tuple[float, Heard, list[tuple[float, float, float]]]] = {
    "a job that goes as expected is not told of": (10.0, steady(10.0, 0.0, 120.0), []),
    "one that loads for three seconds is near enough": (10.0, steady(10.0, 3.0, 120.0), []),
    "one that loads for eight is told of with its first progress": (
        10.0,
        steady(10.0, 8.0, 120.0),
        [(9.0, 10.0, 10.0)],
    ),
    "another speed is told once it was watched for five seconds": (10.0, steady(20.0, 0.0, 60.0), [(6.0, 20.0, 120.0)]),
    "steps of twenty seconds are no change of speed": (1.0, steady(1.0, 0.0, 600.0, step=20.0), []),
    "a speed off by less than a tenth is near enough": (10.0, steady(10.8, 0.0, 2000.0), []),
    "one that says nothing new is not told of": (10.0, [(float(at), 0.0) for at in range(60)], []),
}


@pytest.mark.parametrize("case", CASES)
def test_pace(case: str) -> None:
    expected, heard, news = CASES[case]
    assert list(told(RateTracker(expected), heard)) == news


def test_the_ring_is_never_further_off_than_a_tenth_or_five_seconds_and_a_window() -> None:
    tracker = RateTracker(10.0)
    slow = [(float(at), 10.0 * at if at < 300 else 3000 + 4.0 * (at - 300)) for at in range(1, 900)]
    for at, done in slow:
        rate = tracker.observe(at, done)
        if rate is not None:
            tracker.reported(at, rate, done)
        believed = tracker.done + tracker.rate * (at - tracker.at)
        assert abs(believed - done) <= 10.0 * (6 + max(5.0, 0.1 * (at - tracker.at)))


EDGES: dict[str, tuple[tuple[float, float, float], float, float, float | None]] = {
    "five seconds ahead of what is believed is near enough": ((10.0, 0.0, 0.0), 1.0, 60.0, None),
    "further ahead is a drift": ((10.0, 0.0, 0.0), 1.0, 60.5, 10.0),
    "five seconds behind is near enough": ((10.0, 0.0, 0.0), 20.0, 150.0, None),
    "further behind is a drift": ((10.0, 0.0, 0.0), 20.0, 149.5, 10.0),
    "after a hundred seconds a tenth of them is near enough": ((10.0, 0.0, 0.0), 100.0, 900.0, None),
    "more than a tenth is a drift": ((10.0, 0.0, 0.0), 100.0, 899.5, 10.0),
    "what counts is the time and the progress last reported": ((10.0, 50.0, 500.0), 60.0, 600.0, None),
    "and a drift from there": ((10.0, 50.0, 500.0), 60.0, 651.0, 10.0),
    "no progress beyond what was reported is no news": ((10.0, 0.0, 500.0), 99.0, 500.0, None),
}


@pytest.mark.parametrize(("known", "now", "done", "rate"), EDGES.values(), ids=EDGES.keys())
def test_the_first_progress_is_reported_only_where_it_has_drifted(
    known: tuple[float, float, float], now: float, done: float, rate: float | None
) -> None:
    assert RateTracker(*known).observe(now, done) == rate


def test_a_rate_needs_five_seconds_and_three_advances() -> None:
    tracker = RateTracker(10.0)
    assert [tracker.observe(at, 20.0 * at) for at in (1.0, 2.0, 3.0, 5.9)] == [None, None, None, None]
    assert tracker.observe(6.0, 120.0) == 20.0
    slow = RateTracker(10.0)
    assert [slow.observe(at, 20.0 * at) for at in (1.0, 4.0, 6.0)] == [None, None, None]
    assert slow.observe(6.5, 130.0) == 20.0


def test_the_next_rate_is_measured_from_the_last_one_on() -> None:
    tracker = RateTracker(10.0)
    assert [tracker.observe(float(at), 10.0 * at) for at in range(1, 7)] == [None] * 6
    assert [tracker.observe(6.0 + at, 60.0 + 5.0 * at) for at in range(1, 5)] == [None] * 4
    assert tracker.observe(11.0, 85.0) == 5.0


@pytest.mark.parametrize(("speed", "reported"), [(10.9, None), (11.1, 11.1), (9.1, None), (8.9, 8.9)])
def test_a_rate_is_reported_where_it_differs_by_more_than_a_tenth(speed: float, reported: float | None) -> None:
    tracker = RateTracker(10.0)
    found = [tracker.observe(float(at), speed * at) for at in range(1, 7)]
    assert found[:-1] == [None] * 5
    assert found[-1] == (None if reported is None else pytest.approx(reported))


def test_a_drift_is_reported_also_where_the_rate_is_as_expected() -> None:
    tracker = RateTracker(10.0)
    for at in range(1, 7):
        tracker.observe(float(at), 10.0 * at)
    found = [tracker.observe(6.0 + 10 + at, 60.0 + 10.5 * at) for at in range(1, 7)]
    assert found == [None, None, pytest.approx(31.5 / 13), None, None, None]
    tracker = RateTracker(10.0)
    for at in range(1, 7):
        tracker.observe(float(at), 10.0 * at)
    tracker.reported(6.0, 10.0, 0.0)  # the ring was told of other progress meanwhile
    assert [tracker.observe(6.0 + at, 60.0 + 10.0 * at) for at in range(1, 6)] == [None] * 4 + [10.0]
