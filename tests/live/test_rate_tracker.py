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
