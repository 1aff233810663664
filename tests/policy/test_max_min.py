"""Max-min fair GPU counts."""

import pytest
from hypothesis import given, settings

from shoal.core.decision import Verdicts
from shoal.core.snapshot import Snapshot
from shoal.policy.elastic.max_min import MaxMin
from shoal.testing import strategies
from shoal.testing.builders import job, simulate, snapshot


def counts(moment: Snapshot) -> dict[str, int]:
    verdicts = Verdicts.of(moment, MaxMin().decide(moment).verdicts)
    return dict(zip(moment.ids, verdicts.gpus.tolist(), strict=True))


def test_two_elastic_jobs_share_evenly_while_both_are_there() -> None:
    # Without a model a job's rate is its GPUs over the gang it asked for. a has 4 GPUs until 50 and does 200 of its
    # 400; then both have 2: a needs 100 s more (150), and b has done 200 of 300 by then. Alone on 4 it needs 25 s.
    rows = [job("a", 0, 1, 400, max_gpus=4), job("b", 50, 1, 300, max_gpus=4)]
    run = simulate(MaxMin(), rows, "gpu:1x4")
    assert run.completed == {"a": pytest.approx(150), "b": pytest.approx(175)}
    assert run.cycles[1].sentence("a") == "runs on its share: 2 GPUs of an equal 2"


def test_with_too_many_jobs_they_take_turns() -> None:
    # a runs until 60, then b, which has had nothing, until 120; then both have had 60 and a, the first, ends at 160.
    rows = [job("a", 0, 1, 100), job("b", 0, 1, 100)]
    run = simulate(MaxMin(quantum=60), rows, "gpu:1x1")
    assert run.completed == {"a": 160, "b": 200}
    assert run.cycles[0].sentence("b") == "waits: needs 1 GPU; 0 left when its turn comes"


def test_a_wide_gang_gets_its_turn_among_small_ones() -> None:
    # All leases end with the quantum: at 60 the gang of 4, which has had nothing, finds all four GPUs free.
    rows = [*(job(f"small-{i}", 0, 1, 600) for i in range(4)), job("wide", 1, 4, 30)]
    assert simulate(MaxMin(quantum=60), rows, "gpu:1x4").completed["wide"] == 90


def test_a_rigid_gang_counts_whole_and_elastic_ones_share_the_rest() -> None:
    rows = [job("gang", 0, 5, 100), job("a", 0, 1, 100, max_gpus=8), job("b", 0, 1, 100, max_gpus=8)]
    assert counts(snapshot(rows, "gpu:1x8")) == {"gang": 5, "a": 2, "b": 1}


def test_weights_are_shares() -> None:
    rows = [job("a", 0, 1, 100, max_gpus=9, weight=2.0), job("b", 0, 1, 100, max_gpus=9)]
    assert counts(snapshot(rows, "gpu:1x9")) == {"a": 6, "b": 3}


def test_an_odd_gpu_stays_where_it_is() -> None:
    rows = [job("a", 0, 1, 100, max_gpus=4), job("b", 0, 1, 100, max_gpus=4)]
    assert counts(snapshot(rows, "gpu:1x3", held={"a": 1, "b": 2})) == {"a": 1, "b": 2}


def test_an_elastic_job_wider_than_the_cluster_runs_on_what_there_is() -> None:
    assert counts(snapshot([job("a", 0, 8, 100, min_gpus=2)], "gpu:1x4")) == {"a": 4}


@settings(max_examples=60, deadline=None)
@given(strategies.snapshots(most_kinds=1))
def test_no_job_could_have_more_without_a_job_with_as_few_having_less(moment: Snapshot) -> None:
    verdicts = Verdicts.of(moment, MaxMin().decide(moment).verdicts)
    free = moment.cluster.total_gpus - int(verdicts.gpus.sum())
    kind = moment.cluster.kinds[0]
    level = {i: verdicts.gpus[i] / moment.specs[i].weight for i in range(len(verdicts)) if verdicts.gpus[i]}
    for i, at in level.items():
        spec, gpus = moment.specs[i], int(verdicts.gpus[i])
        curve = moment.perf.curve(moment.jobs.at(i), kind)
        if gpus < spec.max_gpus and curve[gpus + 1] > curve[gpus]:
            assert free == 0, f"{spec.id} could have had a free GPU"
            for j, gave in enumerate(verdicts.gpus.tolist()):
                other = moment.specs[j]
                if gave > other.min_gpus:
                    assert (gave - 1) / other.weight <= at + 1e-9, f"{other.id} has more than {spec.id}"


def test_a_quantum_must_be_a_time() -> None:
    for bad in (0.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="quantum"):
            MaxMin(quantum=bad)
