"""Pollux's figure 9 on the published profiles, and its lower bound; skipped without the public files."""

from pathlib import Path

import pytest

from shoal.perf.measured_profile import MeasuredProfile
from shoal.perf.profile_files import read_profiles
from shoal.research.repro.cloud import BASELINE, TRACES, RentalRule, least_node_hours, measure, tables
from shoal.research.repro.context import ReproContext
from shoal.research.repro.registry import chosen

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"

pytestmark = pytest.mark.skipif(not (DATA / TRACES).is_dir(), reason="the public files are not here")


def test_by_goodput_imagenet_is_cheaper_than_by_throughput_and_hardly_longer() -> None:
    cost, nodes = tables(ReproContext(DATA, quick=True))
    throughput, goodput = (row.values() for row in cost.document()["rows"])
    assert list(throughput)[2] == 0.0
    _, _, cheaper, _, longer = goodput
    assert cheaper < -0.15
    assert longer < 0.1
    first, second = ([int(cell) for cell in row[1:]] for row in nodes.cells())
    assert set(first[:9]) == {16}
    assert second[0] < second[4] < second[8], "more nodes as larger batches become efficient"


def test_no_schedule_is_cheaper_than_the_bound_and_more_time_never_costs_more() -> None:
    profile = read_profiles((str(DATA / TRACES),), ("imagenet",)).profile("imagenet")
    assert isinstance(profile, MeasuredProfile)
    bounds = least_node_hours(profile, [4.6, 4.95, 7.09, 50.0])
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[1] < 60.5, "by goodput"
    assert bounds[2] < 56.7, "eight nodes throughout"


def test_by_value_imagenet_is_a_fifth_cheaper_at_most_a_tenth_longer_and_near_what_no_schedule_can_beat() -> None:
    traces = str(DATA / TRACES)
    base, ours = (measure(traces, rule) for rule in (BASELINE, RentalRule("by value", "value:probe=0.1")))
    assert ours["node_hours"] <= 0.8 * base["node_hours"]
    assert ours["hours"] <= 1.1 * base["hours"]
    profile = read_profiles((traces,), ("imagenet",)).profile("imagenet")
    assert isinstance(profile, MeasuredProfile)
    hours = [4.5 + 0.1 * n for n in range(15)]
    least = min(rent + 5.5 * took for took, rent in zip(hours, least_node_hours(profile, hours), strict=True))
    assert least <= ours["node_hours"] + 5.5 * ours["hours"] <= 1.05 * least


def test_it_is_listed() -> None:
    assert [one.name for one in chosen(["pollux-9", "pollux-table3"])] == ["pollux-9", "pollux-table3"]
