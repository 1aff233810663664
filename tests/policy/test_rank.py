"""Rank: the shorter a job is among those there, the more its next GPU counts."""

import numpy as np
import pytest
from hypothesis import given, settings

from shoal.core.decision import Verdicts
from shoal.core.snapshot import Snapshot
from shoal.perf.afs_profiles import AFS_MODELS
from shoal.policy.classic.shortest import Srtf
from shoal.policy.elastic.rank import Rank
from shoal.solve.rank_shares import by_weighted_speedup, rank_weights
from shoal.testing import strategies
from shoal.testing.builders import job, simulate, snapshot
from shoal.workload.schema import Job


def shares(moment: Snapshot) -> dict[str, int]:
    verdicts = Verdicts.of(moment, Rank().decide(moment).verdicts)
    return dict(zip(moment.ids, verdicts.gpus.tolist(), strict=True))


def training(name: str, model: str, seconds: float) -> Job:
    return job(name, 0, 1, work=seconds, min_gpus=1, max_gpus=AFS_MODELS[model].peak_gpus, model=model)


def test_where_speedups_are_linear_it_is_shortest_first() -> None:
    rows = [job(f"j{n}", 10.0 * n, 1, 100.0 * (7 - n), max_gpus=4) for n in range(6)]
    gangs = [job(f"j{n}", 10.0 * n, 4, 25.0 * (7 - n)) for n in range(6)]
    assert simulate(Rank(), rows, "gpu:1x4").completed == pytest.approx(simulate(Srtf(), gangs, "gpu:1x4").completed)


def test_shares_are_those_of_the_mathematics_ranked_from_the_largest() -> None:
    models = ["afs-vgg16", "afs-transformer", "afs-chatbot", "afs-vgg16"]
    seconds = [100.0, 4000.0, 50.0, 900.0]
    rows = [training(f"j{i}", model, s) for i, (model, s) in enumerate(zip(models, seconds, strict=True))]
    curves = [[AFS_MODELS[m].speedup(k) if k else 0.0 for k in range(AFS_MODELS[m].peak_gpus + 1)] for m in models]
    weights = rank_weights(np.array([3, 1, 4, 2])).tolist()
    wanted = by_weighted_speedup(curves, weights, [1] * 4, 16)
    assert list(shares(snapshot(rows, "gtx1080:4x4")).values()) == wanted


def test_only_as_many_of_the_shortest_as_there_are_gpus_are_candidates() -> None:
    rows = [training(f"j{n}", "afs-vgg16", 100.0 * n) for n in range(1, 7)]
    found = shares(snapshot(rows, "gtx1080:1x4"))
    assert not found["j5"]
    assert not found["j6"]
    told = Rank().decide(snapshot(rows, "gtx1080:1x4")).verdicts["j6"].reason.sentence()
    assert told.startswith("waits: its remaining work in one-GPU seconds is 600; jobs with up to ")


def test_a_candidate_without_gpus_has_the_reason_that_none_is_left() -> None:
    # Linear speed-ups: the shortest takes all four GPUs, though four jobs would fit on one each.
    rows = [job(f"j{n}", 0, 1, 100.0 * n, max_gpus=4) for n in (1, 2)]
    told = Rank().decide(snapshot(rows, "gpu:1x4")).verdicts["j2"].reason.sentence()
    assert told == "waits: its remaining work in one-GPU seconds is 200; jobs with up to 100 go first and take the GPUs"
    gang = [job("short", 0, 3, 10), job("wide", 0, 3, 9), job("one", 0, 1, 1000, max_gpus=2)]
    told = Rank().decide(snapshot(gang, "gpu:1x4")).verdicts["short"].reason.sentence()
    assert told == "waits: needs 3 GPUs; 0 left when its turn comes"


@settings(max_examples=60, deadline=None)
@given(strategies.snapshots())
def test_no_gpu_is_idle_that_would_make_somebody_faster(moment: Snapshot) -> None:
    verdicts = Verdicts.of(moment, Rank().decide(moment).verdicts)
    for k, kind in enumerate(moment.cluster.kinds):
        here = [
            i
            for i in range(len(verdicts))
            if verdicts.gpus[i] and verdicts.kinds is not None and verdicts.kinds[i] == k
        ]
        if sum(int(verdicts.gpus[i]) for i in here) < moment.cluster.capacity[k]:
            for i in here:
                curve, gpus = moment.perf.curve(moment.jobs.at(i), kind), int(verdicts.gpus[i])
                assert gpus == moment.specs[i].max_gpus or curve[gpus + 1] <= curve[gpus]


def test_options_must_make_sense() -> None:
    for bad in (-0.1, 1.0, float("nan")):
        with pytest.raises(ValueError, match="exponent"):
            Rank(exponent=bad)
    for bad in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="ahead"):
            Rank(ahead=bad)
