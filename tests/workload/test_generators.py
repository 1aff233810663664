import math
from collections import Counter
from itertools import pairwise

import pytest

from shoal.core.errors import InputError
from shoal.core.topology import Locality
from shoal.perf.catalog import catalog
from shoal.workload.batch_schedules import batch_schedule
from shoal.workload.files import to_jsonl
from shoal.workload.generators.pollux import CATEGORIES, tuned_settings
from shoal.workload.generators.randomness import random_stream
from shoal.workload.generators.registry import GENERATORS, generate
from shoal.workload.schema import Job


def hours(job: Job, kind: str) -> float:
    rate = catalog().profile(job.model or "").rate(kind, job.gpus, Locality.SAME_NODE, job.batch_size)
    return job.work / rate / 3600.0


@pytest.mark.parametrize("name", list(GENERATORS))
def test_a_seed_determines_every_byte_and_another_seed_gives_another_workload(name: str) -> None:
    first, again, other = (to_jsonl(generate(name, jobs=40, seed=seed)) for seed in (5, 5, 6))
    assert first == again
    assert first != other


@pytest.mark.parametrize("name", list(GENERATORS))
def test_every_generated_job_can_run_somewhere_and_the_number_is_as_asked(name: str) -> None:
    workload = generate(name, jobs=60, seed=1)
    assert len(workload) == 60
    for job in workload.jobs:
        if job.model is None:  # its work is seconds, on any kind
            continue
        profile = catalog().profile(job.model)
        for size in (job.batch_size, *(size for _, size in job.batch_schedule)):
            assert any(profile.rate(kind, job.gpus, Locality.SAME_NODE, size) > 0 for kind in profile.kinds or ())


@pytest.mark.parametrize(("name", "jobs"), [(g.name, g.jobs) for g in GENERATORS.values() if g.jobs <= 200])
def test_the_number_of_jobs_has_a_default(name: str, jobs: int) -> None:
    assert len(generate(name, seed=0)) == jobs


def test_gavel_durations_follow_the_two_ranges_of_the_paper() -> None:
    workload = generate("gavel-continuous-single", jobs=4000, seed=3)
    exponents = [math.log10(60.0 * hours(job, "v100")) for job in workload.jobs]
    # Whole steps make a duration a little shorter than drawn, never longer.
    assert min(exponents) > 1.45
    assert max(exponents) < 4.0
    assert sum(x > 3.0 for x in exponents) / 4000 == pytest.approx(0.2, abs=0.02)
    # Uniform within the lower range: its middle splits it in two.
    assert sum(x < 2.25 for x in exponents) / 4000 == pytest.approx(0.4, abs=0.025)
    assert {job.gpus for job in workload.jobs} == {1}
    types = Counter((job.model, job.batch_size) for job in workload.jobs)
    assert len(types) == 26
    assert max(types.values()) / 4000 == pytest.approx(1 / 26, abs=0.015)


def test_gavel_arrivals_are_poisson_with_the_mean_asked_for() -> None:
    workload = generate("gavel-continuous-multiple", jobs=4000, seed=3, interarrival="100")
    gaps = [b.submitted - a.submitted for a, b in pairwise(workload.jobs)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(100.0, rel=0.06)
    # An exponential variable is as wide as its mean, and is under its mean 1 - 1/e of the time.
    assert sum(g < mean for g in gaps) / len(gaps) == pytest.approx(1 - math.exp(-1), abs=0.03)
    sizes = Counter(job.gpus for job in workload.jobs)
    assert sizes[1] / 4000 == pytest.approx(0.70, abs=0.025)
    assert (sizes[2] + sizes[4]) / 4000 == pytest.approx(0.25, abs=0.025)
    assert sizes[8] / 4000 == pytest.approx(0.05, abs=0.015)


def test_the_static_trace_is_all_there_at_the_start() -> None:
    assert {job.submitted for job in generate("gavel-static", jobs=50, seed=0).jobs} == {0.0}
    assert {job.gpus for job in generate("gavel-static", jobs=50, seed=0, multiple="false").jobs} == {1}


def test_shockwave_jobs_have_the_papers_run_times_gangs_and_modes() -> None:
    workload = generate("shockwave", jobs=3000, seed=2, static=0.2, accordion=0.4, gns=0.4)
    times = [hours(job, "v100") for job in workload.jobs]
    assert min(times) > 0.19
    assert max(times) <= 5.0
    sizes = Counter(job.gpus for job in workload.jobs)
    assert [sizes[n] / 3000 for n in (1, 2, 4, 8)] == pytest.approx([0.6, 0.3, 0.09, 0.01], abs=0.025)
    # On two GPUs only Small and Medium are in reach, 0.72 against 0.2.
    two = [2 * hours(job, "v100") for job in workload.jobs if job.gpus == 2]
    assert sum(t >= 8 for t in two) / len(two) == pytest.approx(0.2 / 0.92, abs=0.05)
    assert {job.model for job in workload.jobs} == {"ResNet-50", "ResNet-18", "LM", "Transformer", "Recommendation"}
    small = [job for job in workload.jobs if (job.model, job.batch_size) == ("LM", 5)]
    unchanged = sum(not job.batch_schedule for job in small) / len(small)
    assert unchanged == pytest.approx(0.2, abs=0.12)


def test_shockwave_modes_can_be_turned_off() -> None:
    assert not any(
        job.batch_schedule for job in generate("shockwave", jobs=80, seed=0, static=1, accordion=0, gns=0).jobs
    )
    with pytest.raises(InputError, match="not all 0"):
        generate("shockwave", seed=0, static=0, accordion=0, gns=0)
    with pytest.raises(InputError, match="try v100 or rtx5000"):
        generate("shockwave", seed=0, kind="t4")


def test_pollux_models_come_with_table_ones_fractions_and_tuned_settings() -> None:
    workload = generate("pollux", jobs=3000, seed=4)
    models = Counter(job.model for job in workload.jobs)
    expected = {"cifar10": 0.36, "ncf": 0.36, "deepspeech2": 0.10, "bert": 0.10, "yolov3": 0.06, "imagenet": 0.02}
    assert {m: models[m] / 3000 for m in expected} == pytest.approx(expected, abs=0.03)
    tuned = {model: tuned_settings(model, "t4", 4) for model in expected}
    for job in workload.jobs:
        assert (job.gpus, job.batch_size) in tuned[job.model or ""]
        assert job.work == catalog().work(job.model or "")
    assert max(job.submitted for job in workload.jobs) < 8 * 3600
    by_hour = Counter(int(job.submitted // 3600) for job in workload.jobs)
    assert max(by_hour, key=by_hour.__getitem__) == 5
    assert min(by_hour, key=by_hour.__getitem__) == 2


@pytest.mark.parametrize("model", [m for _, models in CATEGORIES.values() for m in models if m != "ncf"])
def test_a_tuned_gang_goes_half_to_four_fifths_as_fast_as_ideal(model: str) -> None:
    profile = catalog().profile(model)
    sizes = [t.batch_size for t in catalog().types() if t.model == model]
    alone = max(profile.rate("t4", 1, Locality.SAME_NODE, size) for size in sizes)
    for gpus, batch in tuned_settings(model, "t4", 4):
        where = Locality.SAME_NODE if gpus <= 4 else Locality.CROSS_NODE
        speed = profile.rate("t4", gpus, where, batch)
        assert speed == max(profile.rate("t4", gpus, where, size) for size in sizes)
        assert 0.5 <= speed / (gpus * alone) <= 0.8


def test_the_demo_is_a_mixed_bag_that_runs_on_all_of_its_cluster() -> None:
    workload = generate("demo", seed=0)
    for job in workload.jobs:
        profile = catalog().profile(job.model or "")
        for gpus in {job.spec().min_gpus, job.gpus, job.spec().max_gpus}:
            for size in (job.batch_size, *(size for _, size in job.batch_schedule)):
                for kind in ("v100", "p100", "k80"):
                    assert profile.rate(kind, gpus, Locality.SAME_NODE, size) > 0.0
    assert {job.gpus for job in workload.jobs} == {1, 2, 4, 8}
    assert len({job.tenant for job in workload.jobs}) == 4
    assert sum(job.spec().elastic for job in workload.jobs) > 30
    assert sum(bool(job.batch_schedule) for job in workload.jobs) > 20
    assert any(job.deadline for job in workload.jobs)
    assert any(not job.declares_work for job in workload.jobs)
    assert 18 * 3600 < workload.jobs[-1].submitted <= 20 * 3600


@pytest.mark.parametrize("seed", range(4))
def test_the_demo_brings_about_the_same_load_with_every_seed(seed: int) -> None:
    # 48 GPUs, a P100 being about half and a K80 about a fifth of a V100: 27 or so V100s are kept busy.
    workload = generate("demo", seed=seed)
    busy = sum(job.gpus * hours(job, "v100") for job in workload.jobs) / (workload.jobs[-1].submitted / 3600)
    assert 22 < busy < 34


def test_names_and_options_that_are_unknown_get_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean pollux"):
        generate("polux", seed=0)
    with pytest.raises(InputError, match="did you mean interarrival"):
        generate("demo", seed=0, inter_arrival=3)
    with pytest.raises(InputError, match="interarrival: 'soon': must be a finite number"):
        generate("demo", seed=0, interarrival="soon")
    with pytest.raises(InputError, match=r"node_gpus: 1\.5: must be a whole number"):
        generate("pollux", seed=0, node_gpus=1.5)
    with pytest.raises(InputError, match="multiple: 'maybe': must be true or false"):
        generate("gavel-static", seed=0, multiple="maybe")
    with pytest.raises(InputError, match="jobs: 0: must be at least 1"):
        generate("demo", jobs=0, seed=0)
    with pytest.raises(InputError, match="seed: -1"):
        generate("demo", seed=-1)


def test_options_are_listed_with_their_defaults() -> None:
    assert GENERATORS["shockwave"].defaults()["interarrival"] == 40.0
    assert all(g.summary and g.paper for g in GENERATORS.values())


def test_schedules_end_at_the_largest_batch_even_if_it_is_no_doubling() -> None:
    assert batch_schedule("gns", 100.0, 10, (10, 30)) == ((25.0, 20), (50.0, 30))
    assert batch_schedule("accordion", 100.0, 30, (10, 30)) == ()


def test_weighted_dice_never_pick_what_weighs_nothing() -> None:
    rng = random_stream(0)
    picks = Counter(rng.pick("abc", (1.0, 0.0, 3.0)) for _ in range(2000))
    assert picks["b"] == 0
    assert picks["c"] / 2000 == pytest.approx(0.75, abs=0.04)
    assert sorted(rng.shuffled(range(50))) == list(range(50))


def test_helios_jobs_have_the_run_times_and_gangs_of_venus_and_declare_nothing() -> None:
    jobs = generate("helios", jobs=20_000, seed=2).jobs
    assert 120 < sorted(job.work for job in jobs)[10_000] < 350
    assert 5_000 < sum(job.work for job in jobs) / 20_000 < 25_000
    assert 4 < sum(job.gpus for job in jobs) / 20_000 < 9
    assert not any(job.declares_work for job in jobs)
