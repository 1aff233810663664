"""What policies are told: from the catalogue, or only from what was measured on the job."""

from dataclasses import dataclass
from math import isnan, nan
from typing import cast

import pytest

from shoal.core.errors import InputError
from shoal.core.interfaces import PerfModel
from shoal.core.job import BatchSetting, JobSpec
from shoal.core.snapshot import JobView, Measurement
from shoal.core.topology import Locality, Placement, parse_cluster
from shoal.perf.catalog import TIME_SLICED, catalog
from shoal.perf.model import EXTRAPOLATED_SPREAD, UNKNOWN_SPREAD, OnlineModel, ProfiledModel

SAME, NODE, RACK = Locality.SAME_NODE, Locality.CROSS_NODE, Locality.CROSS_RACK
CLUSTER = parse_cluster("v100:3x4,k80:1x2,t4:1x4", nodes_per_rack=2)
ONE, TWO, FAR = Placement(((0, 4),)), Placement(((0, 2), (1, 2))), Placement(((0, 2), (2, 2)))


@dataclass(frozen=True)
class Seen:
    """As much of a job view as a model reads."""

    spec: JobSpec
    batch_size: int | None
    measured: tuple[Measurement, ...] = ()


def spec(
    gpus: int = 4,
    model: str | None = None,
    batch: int | None = None,
    most: int = 4,
    kinds: tuple[str, ...] | None = None,
) -> JobSpec:
    return JobSpec("j", 0.0, gpus, 100.0, 1, most, model=model, batch_size=batch, kinds=kinds)


def view(of: JobSpec, *measured: Measurement, batch: int | None = None) -> JobView:
    return cast(JobView, Seen(of, batch or of.batch_size, measured))


def profiled() -> ProfiledModel:
    return ProfiledModel(CLUSTER, catalog())


def test_both_models_are_what_a_snapshot_wants() -> None:
    models: list[PerfModel] = [profiled(), OnlineModel(CLUSTER)]
    assert len(models) == 2


def resnet(kind: str, gpus: int, locality: Locality, batch: int = 64) -> float:
    return catalog().profile("ResNet-50").rate(kind, gpus, locality, batch)


SPEEDS = [
    ("a job without a model runs at 1 wherever it fits", spec(), [1.0, 0.0, 1.0]),
    ("a gang too large for every kind runs nowhere", spec(gpus=13), [0.0, 0.0, 0.0]),
    ("a kind the job does not allow is 0", spec(kinds=("t4",)), [0.0, 0.0, 1.0]),
    ("a kind without figures is 0", spec(model="bert", batch=12, gpus=1, kinds=("k80",)), [0.0, 0.0, 0.0]),
    (
        "a gang within a node goes at the packed rate",
        spec(gpus=2, model="ResNet-50", batch=64),
        [resnet("v100", 2, SAME), resnet("k80", 2, SAME), 0.0],
    ),
    (
        "a gang larger than a node goes at the spread rate",
        spec(gpus=8, model="ResNet-50", batch=64),
        [resnet("v100", 8, NODE), 0.0, 0.0],
    ),
]


@pytest.mark.parametrize(("job", "speeds"), [c[1:] for c in SPEEDS], ids=[c[0] for c in SPEEDS])
def test_profiled_speeds(job: JobSpec, speeds: list[float]) -> None:
    assert profiled().speeds(job).tolist() == speeds


def test_speeds_of_equal_shapes_are_one_read_only_array() -> None:
    model = profiled()
    speeds = model.speeds(spec())
    assert model.speeds(spec()) is speeds
    with pytest.raises(ValueError, match="read-only"):
        speeds[0] = 2.0


def test_speeds_follow_a_changed_batch_size() -> None:
    model = profiled()
    changed = model.speeds(spec(model="ResNet-50", batch=16), 64)
    assert changed is model.speeds(spec(model="ResNet-50", batch=64))
    assert changed[0] == resnet("v100", 4, SAME, 64)


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(InputError, match="did you mean"):
        profiled().speeds(spec(model="ResNet50"))


@pytest.mark.parametrize(("seats", "locality"), [(ONE, SAME), (TWO, NODE), (FAR, RACK)])
def test_a_profiled_rate_is_the_profiles_on_those_seats(seats: Placement, locality: Locality) -> None:
    job = view(spec(model="cifar10", batch=512))
    estimate = profiled().rate(job, seats)
    profile = catalog().profile("cifar10")
    assert estimate.value == profile.rate("v100", 4, locality, 512)
    assert (estimate.basis, estimate.spread) == ("profiled", 0.203)


def test_a_profiled_rate_follows_the_batch_size_the_job_runs_at() -> None:
    model = profiled()
    job = spec(model="cifar10", batch=128)
    assert model.rate(view(job, batch=1024), ONE) == model.rate(view(spec(model="cifar10", batch=1024)), ONE)
    assert model.rate(view(job), ONE, BatchSetting(1024)) == model.rate(view(job, batch=1024), ONE)


def test_a_batch_setting_counts_the_whole_gang_also_for_models_counted_per_gpu() -> None:
    job = view(spec(model="ResNet-50", batch=16))
    assert profiled().rate(job, ONE, BatchSetting(4 * 64)).value == resnet("v100", 4, SAME, 64)


def test_a_kind_the_job_does_not_allow_has_rate_0() -> None:
    job = view(spec(kinds=("t4",)))
    assert profiled().rate(job, ONE).value == 0.0
    assert OnlineModel(CLUSTER).rate(job, ONE).value == 0.0


def test_a_profiled_curve_goes_from_0_gpus_to_the_most_and_stops_at_what_there_is() -> None:
    curve = profiled().curve(view(spec(gpus=2, most=14)), "v100")
    assert curve.tolist() == [n / 2 for n in range(13)] + [0.0, 0.0]
    scaling = profiled().curve(view(spec(model="imagenet", batch=800, most=8)), "v100")
    profile = catalog().profile("imagenet")
    assert scaling[4] == profile.rate("v100", 4, SAME, 800)
    assert scaling[5] == profile.rate("v100", 5, NODE, 800)
    assert not profiled().curve(view(spec(kinds=("t4",))), "v100").any()


def test_profiled_colocation_is_the_catalogues() -> None:
    a, b = view(spec(1, "ResNet-50", 32)), view(spec(1, "A3C"))
    assert profiled().colocated(a, b) == catalog().colocated("ResNet-50", 32, "A3C", None)
    assert profiled().colocated(a, view(spec())) == TIME_SLICED


M = Measurement
ONLINE = [
    ("nothing measured: the gang is the unit", (), ONE, (1.0, "unknown", UNKNOWN_SPREAD)),
    ("an exact hit is given back", (M(0, 4, SAME, 64, 7.0),), ONE, (7.0, "measured", 0.0)),
    ("the latest of equals counts", (M(0, 4, SAME, 64, 7.0), M(0, 4, SAME, 64, 5.0)), ONE, (7.0, "measured", 0.0)),
    ("an unreported batch size is no difference", (M(0, 4, SAME, 0, 7.0),), ONE, (7.0, "measured", 0.0)),
    ("other counts scale by GPU", (M(0, 2, SAME, 64, 7.0),), ONE, (14.0, "extrapolated", EXTRAPOLATED_SPREAD)),
    ("other distances do not scale", (M(0, 4, SAME, 64, 7.0),), TWO, (7.0, "extrapolated", EXTRAPOLATED_SPREAD)),
    (
        "the same kind is nearer than the same count",
        (M(2, 4, SAME, 64, 3.0), M(0, 1, SAME, 64, 7.0)),
        ONE,
        (28.0, "extrapolated", EXTRAPOLATED_SPREAD),
    ),
    ("another batch size is not an exact hit", (M(0, 4, SAME, 32, 7.0),), ONE, (7.0, "extrapolated", 0.5)),
    ("a measured standstill says nothing", (M(0, 4, SAME, 64, 0.0),), ONE, (1.0, "unknown", UNKNOWN_SPREAD)),
]


@pytest.mark.parametrize(("measured", "seats", "answer"), [c[1:] for c in ONLINE], ids=[c[0] for c in ONLINE])
def test_online(measured: tuple[Measurement, ...], seats: Placement, answer: tuple[float, str, float]) -> None:
    estimate = OnlineModel(CLUSTER).rate(view(spec(batch=64), *measured), seats)
    assert (estimate.value, estimate.basis, estimate.spread) == answer


def test_online_all_kinds_look_equal_before_anything_is_measured() -> None:
    model = OnlineModel(CLUSTER)
    assert model.speeds(spec(gpus=2, model="ResNet-50")).tolist() == [1.0, 1.0, 1.0]
    assert model.speeds(spec(gpus=4, kinds=("v100", "k80"))).tolist() == [1.0, 0.0, 0.0]


def test_an_online_curve_passes_through_what_was_measured() -> None:
    job = view(spec(gpus=2, batch=64, most=4), M(0, 1, SAME, 64, 3.0), M(0, 2, SAME, 64, 5.0))
    assert OnlineModel(CLUSTER).curve(job, "v100").tolist() == [0.0, 3.0, 5.0, 7.5, 10.0]
    assert OnlineModel(CLUSTER).curve(view(spec(most=4)), "k80").tolist() == [0.0, 0.25, 0.5, 0.0, 0.0]


@pytest.mark.parametrize("measured", [c[1] for c in ONLINE], ids=[c[0] for c in ONLINE])
@pytest.mark.parametrize("kind", ["v100", "k80", "t4"])
def test_an_online_curve_is_the_rate_on_as_few_nodes_as_possible(measured: tuple[Measurement, ...], kind: str) -> None:
    model, k = OnlineModel(CLUSTER), CLUSTER.kind_index[kind]
    nodes = [n for n, at in enumerate(CLUSTER.node_kind) if at == k]
    job, size = view(spec(batch=64, most=14), *measured), CLUSTER.node_size[k]
    rates = [0.0]
    for gpus in range(1, 15):
        seats = tuple((n, min(size, gpus - size * i)) for i, n in enumerate(nodes[:2]) if gpus > size * i)
        fits = gpus <= min(size * len(nodes[:2]), CLUSTER.installed[k])
        rates.append(model.rate(job, Placement(seats)).value if fits else nan)
    for _ in range(2):  # the second time from what is kept
        curve = model.curve(job, kind).tolist()
        assert all(rate == known or isnan(known) for rate, known in zip(curve, rates, strict=True))


def test_online_jobs_that_share_take_turns() -> None:
    assert OnlineModel(CLUSTER).colocated(view(spec()), view(spec())) == TIME_SLICED
