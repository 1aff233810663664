"""What one may rely on in a profile, whichever way the model's speed is known."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.topology import Locality
from shoal.perf.catalog import catalog
from shoal.perf.profile import (
    CROSS_NODE_PENALTY,
    CROSS_RACK_PENALTY,
    LinearProfile,
    MeasuredRate,
    ScalingProfile,
    StepTimes,
    TableProfile,
)

SAME, NODE, RACK = Locality.SAME_NODE, Locality.CROSS_NODE, Locality.CROSS_RACK

TABLE = TableProfile(
    {
        16: {
            "v100": (MeasuredRate(1, 100.0), MeasuredRate(2, 160.0, 120.0), MeasuredRate(8, 320.0, 400.0)),
            "k80": (MeasuredRate(1, 10.0),),
        },
        64: {
            "v100": (MeasuredRate(1, 300.0), MeasuredRate(2, 0.0), MeasuredRate(8, 0.0)),
            "k80": (MeasuredRate(1, 0.0),),
        },
    }
)
TIMES = StepTimes((0.1, 0.01), (0.05, 0.001), (0.2, 0.002), gamma=2.0, max_local=32, node_gpus=4, error=0.1)
SCALING = ScalingProfile({"t4": TIMES}, 32, 1024, ((0.0, 100.0), (0.5, 400.0), (1.0, 1600.0)), 1e6)


@given(gang=st.integers(1, 4096), kind=st.sampled_from(["v100", "whatever"]), locality=st.sampled_from(list(Locality)))
def test_a_linear_profile_is_exactly_one_on_the_requested_gang(gang: int, kind: str, locality: Locality) -> None:
    profile = LinearProfile(gang)
    assert profile.rate(kind, gang, locality) == 1.0
    assert profile.rate(kind, 2 * gang, locality) == 2.0
    assert profile.rate(kind, 0, locality) == 0.0
    assert profile.kinds is None


TABLE_CASES = [
    ("a measured figure is given back", ("v100", 2, SAME, 16), 160.0),
    ("the default batch size is the middle one", ("v100", 1, SAME, None), 300.0),
    ("between counts the rate per GPU is linear in log2", ("v100", 4, SAME, 16), 4 * 60.0),
    ("beyond the largest count the rate per GPU stays", ("v100", 16, SAME, 16), 640.0),
    ("between batch sizes the rate is linear in log2", ("v100", 1, SAME, 32), 200.0),
    ("below the smallest batch size the rate stays", ("v100", 1, SAME, 4), 100.0),
    ("above the largest batch size the rate stays", ("v100", 1, SAME, 512), 300.0),
    ("a batch that does not fit has rate 0", ("v100", 2, SAME, 64), 0.0),
    ("nothing fits between fitting and not fitting", ("v100", 2, SAME, 32), 0.0),
    ("a spread gang goes at the spread figure", ("v100", 2, NODE, 16), 120.0),
    ("a spread figure above the packed one is not believed", ("v100", 8, NODE, 16), 320.0),
    ("the spread figure serves across racks too", ("v100", 2, RACK, 16), 120.0),
    ("one GPU is never spread", ("v100", 1, RACK, 16), 100.0),
    ("nodes cost the usual penalty where unmeasured", ("k80", 2, NODE, 16), 20.0 / CROSS_NODE_PENALTY),
    ("racks cost the usual penalty where unmeasured", ("k80", 2, RACK, 16), 20.0 / CROSS_RACK_PENALTY),
    ("an unknown kind has rate 0", ("tpu", 1, SAME, 16), 0.0),
    ("no GPUs have rate 0", ("v100", 0, SAME, 16), 0.0),
]


@pytest.mark.parametrize(("question", "answer"), [c[1:] for c in TABLE_CASES], ids=[c[0] for c in TABLE_CASES])
def test_a_table_profile_answers(question: tuple[str, int, Locality, int | None], answer: float) -> None:
    assert TABLE.rate(*question) == pytest.approx(answer, rel=1e-12)


def test_a_table_profile_stops_at_the_most_gpus_its_model_can_use() -> None:
    single = replace(TABLE, max_gpus=1)
    assert single.rate("v100", 1, SAME, 16) == 100.0
    assert single.rate("v100", 2, SAME, 16) == 0.0


def test_a_table_profile_names_only_kinds_that_run() -> None:
    assert TABLE.kinds == ("v100", "k80")
    assert TABLE.kinds_at(64) == ("v100",)


@given(gpus=st.integers(1, 64), local=st.integers(1, 32), locality=st.sampled_from(list(Locality)))
def test_a_step_takes_between_the_larger_of_compute_and_sync_and_their_sum(
    gpus: int, local: int, locality: Locality
) -> None:
    compute, sync = TIMES.pass_seconds(local), TIMES.sync_seconds(gpus, locality)
    step = TIMES.iteration_seconds(local * gpus, gpus, locality) / TIMES.slowdown(gpus, locality)
    assert max(compute, sync) * (1 - 1e-12) <= step <= (compute + sync) * (1 + 1e-12)


def test_a_batch_too_large_for_memory_is_accumulated() -> None:
    compute = TIMES.pass_seconds(30)
    assert TIMES.iteration_seconds(90, 1, SAME) == pytest.approx(3 * compute)


STEP_CASES = [
    ("one GPU waits for nobody", 1, SAME, 0.0),
    ("two GPUs pay the fixed part", 2, SAME, 0.05),
    ("each GPU more on a node pays its part", 4, SAME, 0.052),
    ("over nodes the network counts", 4, NODE, 0.204),
    ("racks wait like nodes, and pay the rest as a factor", 4, RACK, 0.204),
]


@pytest.mark.parametrize(("gpus", "locality", "seconds"), [c[1:] for c in STEP_CASES], ids=[c[0] for c in STEP_CASES])
def test_synchronisation(gpus: int, locality: Locality, seconds: float) -> None:
    assert TIMES.sync_seconds(gpus, locality) == pytest.approx(seconds)


def test_where_no_network_was_measured_the_usual_penalties_apply() -> None:
    profile = replace(SCALING, times={"t4": replace(TIMES, network=None)})
    here = profile.rate("t4", 4, SAME, 128)
    assert profile.rate("t4", 4, NODE, 128) == pytest.approx(here / CROSS_NODE_PENALTY)
    assert profile.rate("t4", 4, RACK, 128) == pytest.approx(here / CROSS_RACK_PENALTY)


@pytest.mark.parametrize("model", ["cifar10", "bert", "deepspeech2", "yolov3", "imagenet"])
@pytest.mark.parametrize("kind", ["t4", "v100", "a100", "rtx6000", "rtx2080ti"])
def test_more_gpus_on_one_node_go_faster_at_the_largest_batch(model: str, kind: str) -> None:
    profile = catalog().profiles[model]
    assert isinstance(profile, ScalingProfile)
    counts = [n for n in (1, 2, 4, 8) if n <= profile.times[kind].node_gpus]
    rates = [profile.rate(kind, n, SAME, profile.max_batch) for n in counts]
    assert rates == sorted(rates)
    assert rates[0] > 0


CANNOT_RUN = [
    ("an unknown kind", ("k80", 1, 32)),
    ("no GPUs", ("t4", 0, 32)),
    ("less than a sample per GPU", ("t4", 33, 32)),
    ("a batch above the largest", ("t4", 1, 2048)),
]


@pytest.mark.parametrize("question", [c[1] for c in CANNOT_RUN], ids=[c[0] for c in CANNOT_RUN])
def test_a_scaling_profile_has_rate_0_for(question: tuple[str, int, int]) -> None:
    kind, gpus, batch = question
    assert SCALING.rate(kind, gpus, SAME, batch) == 0.0


def test_efficiency_is_one_at_the_initial_batch_and_falls_with_the_batch() -> None:
    sizes = SCALING.batch_sizes
    efficiencies = [SCALING.efficiency(size) for size in sizes]
    assert sizes == (32, 64, 128, 256, 512, 1024)
    assert efficiencies[0] == pytest.approx(1.0)
    assert efficiencies == sorted(efficiencies, reverse=True)
    assert SCALING.efficiency(8) == pytest.approx(1.0)


@given(batch=st.integers(32, 1024))
def test_mean_efficiency_gives_the_run_time_of_the_whole_training(batch: int) -> None:
    steps = 2000
    raw = SCALING.throughput("t4", 4, SAME, batch)
    noises = [SCALING.noise_scale((i + 0.5) / steps) for i in range(steps)]
    seconds = sum(SCALING.work / steps / raw * (noise + batch) / (noise + 32) for noise in noises)
    assert SCALING.work / SCALING.rate("t4", 4, SAME, batch) == pytest.approx(seconds, rel=1e-5)


def test_the_noise_scale_is_the_known_one_at_known_fractions_and_stays_at_the_last() -> None:
    for progress, noise in SCALING.noise:
        assert SCALING.noise_scale(progress) == pytest.approx(noise)
    assert SCALING.noise_scale(2.0) == SCALING.noise_scale(1.0)


@given(
    model=st.sampled_from(catalog().models),
    kind=st.sampled_from(catalog().kinds),
    gpus=st.integers(1, 128),
    batch=st.none() | st.integers(1, 40000),
)
def test_rates_are_finite_and_distance_never_helps(model: str, kind: str, gpus: int, batch: int | None) -> None:
    profile = catalog().profile(model)
    same, node, rack = (profile.rate(kind, gpus, locality, batch) for locality in Locality)
    assert 0.0 <= rack <= node * (1 + 1e-12)
    assert node <= same * (1 + 1e-12)
    assert math.isfinite(same)
    assert profile.kinds is not None
    assert kind in profile.kinds or same == 0.0
