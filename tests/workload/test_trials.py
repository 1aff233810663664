"""Trials in a workload: rows of an app with a search, refused where no search could be made of them; and Themis's."""

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from shoal.core.errors import InputError
from shoal.core.topology import parse_cluster
from shoal.workload.describe import describe
from shoal.workload.files import read_workload, write_workload
from shoal.workload.generators.registry import generate
from shoal.workload.generators.themis import CLUSTER
from shoal.workload.schema import Job, Workload, trials_by_app


def trial(id: str = "t", **more: Any) -> Job:
    plain = {"submitted": 0.0, "gpus": 1, "work": 10.0, "app": "a", "search": "halving", "loss": 0.2, "pace": 9.0}
    return Job(id=id, **{**plain, **more})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("app", None),
        ("search", None),
        ("search", "halfing"),
        ("search", "halving:eta=1"),
        ("loss", None),
        ("loss", 1.0),
        ("loss", float("nan")),
        ("pace", None),
        ("pace", 0.0),
        ("deadline", 100.0),
    ],
)
def test_a_trial_that_cannot_be_searched_is_refused(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=rf"^{field}"):
        trial(**{field: value})


def test_a_trial_has_no_script_of_batch_sizes() -> None:
    with pytest.raises(InputError, match=r"^batch_schedule"):
        trial(model="LM", batch_schedule=((5.0, 10),))


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([trial("t"), trial("u", submitted=1.0)], "t has 'halving' at 0 s, u has 'halving' at 1 s"),
        ([trial("t"), trial("u", search="curve")], "u has 'curve' at 0 s"),
        ([trial(f"t{n}", search="hyperband:most=3") for n in range(6)], "tries 5"),
        ([trial("t"), Job(id="t#2", submitted=0.0, gpus=1, work=1.0)], "t#2.*must not contain"),
    ],
    ids=["apart in time", "two searches", "more trials than it tries", "the name of a later leg"],
)
def test_trials_that_do_not_make_one_search_are_refused(rows: list[Job], says: str) -> None:
    with pytest.raises(InputError, match=says):
        Workload("w", tuple(rows))


def test_a_name_like_a_later_leg_is_fine_where_nothing_is_searched() -> None:
    assert len(Workload("w", (Job(id="t#2", submitted=0.0, gpus=1, work=1.0),))) == 1


@pytest.mark.parametrize("name", ["w.jsonl", "w.parquet"])
def test_trials_survive_a_round_trip(tmp_path: Path, name: str) -> None:
    rows = (
        trial("t"),
        trial("u", loss=0.75, search="halving", max_gpus=4),
        Job(id="p", submitted=3.0, gpus=1, work=1.0),
    )
    write_workload(Workload("w", rows), tmp_path / name)
    assert read_workload(tmp_path / name).jobs == rows


def test_a_description_says_that_trials_are_counted_whole() -> None:
    lines = describe(Workload("w", (trial("t"), trial("u")))).lines()
    assert any("2 trials, counted as whole trainings" in line for line in lines)


# ── Themis's workload ─────────────────────────────────────────────────────────────────────────────────────────────


def test_themis_cluster_is_that_of_its_footnote() -> None:
    cluster = parse_cluster(CLUSTER)
    assert Counter(node.gpus for node in cluster.nodes) == {8: 16, 4: 6, 1: 16}
    assert cluster.total_gpus == 168


def test_themis_apps_come_one_by_one_and_their_trials_together() -> None:
    workload = generate("themis", jobs=4000, seed=1)
    apps = list(trials_by_app(workload.jobs).values())
    assert {len({job.submitted for job in trials}) for trials in apps} == {1}
    arrivals = [trials[0].submitted for trials in apps]
    assert arrivals[-1] / (len(apps) - 1) == pytest.approx(900.0, rel=0.25)
    counts = Counter(map(len, apps[:-1]))
    assert set(counts) == {1, 8, 16, 32}
    assert counts[1] / len(apps) == pytest.approx(0.1, abs=0.05)
    # The demand of an app stays what it is as it halves: a lone survivor may use all of it.
    assert all(job.max_gpus == job.gpus * len(trials) for trials in apps[:-1] for job in trials)
    models = Counter(trials[0].model for trials in apps)
    assert models["VGG16"] / len(apps) == pytest.approx(0.5, abs=0.1)


def test_a_themis_app_with_all_the_gpus_it_wants_takes_a_tenth_to_ten_times_its_hours() -> None:
    rates = {"VGG16": 103.6 / 4, "Inception-v3": 242 / 4}
    hours: dict[str, float] = defaultdict(float)
    for name, trials in trials_by_app(generate("themis", jobs=9000, seed=2, hours=2.0).jobs).items():
        job = trials[0]
        rungs = ((job.max_gpus or 0) // job.gpus).bit_length()
        # The first of the rungs, all of one length, is 1/(2^rungs - 1) of a training.
        hours[name] = rungs * job.work / (2**rungs - 1) / (rates[job.model or ""] * job.gpus) / 3600.0
    assert min(hours.values()) >= 0.19
    assert max(hours.values()) <= 20.0
    assert sum(h < 2.0 for h in hours.values()) / len(hours) == pytest.approx(0.5, abs=0.06)


def test_the_share_of_network_intensive_apps_is_an_option() -> None:
    assert {job.model for job in generate("themis", jobs=200, seed=0, network=0).jobs} == {"Inception-v3"}
    assert {job.model for job in generate("themis", jobs=200, seed=0, network=1).jobs} == {"VGG16"}
    with pytest.raises(InputError, match="at most 1"):
        generate("themis", network=2)
