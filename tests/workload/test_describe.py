import json

import pytest

from shoal.workload.describe import describe
from shoal.workload.generators.registry import generate
from shoal.workload.schema import Job, Workload


def plain(name: str, submitted: float, gpus: int, work: float, tenant: str = "default") -> Job:
    return Job(id=name, submitted=submitted, gpus=gpus, work=work, tenant=tenant)


SMALL = Workload(
    "small",
    (plain("a", 0.0, 1, 3600.0), plain("b", 10.0, 4, 7200.0, "x"), plain("c", 7200.0, 1, 0.0 + 1800.0)),
    skipped=("f:3: broken",),
    left_out=(("jobs without a GPU", 5),),
)


def test_run_times_in_seconds_give_exact_gpu_hours() -> None:
    about = describe(SMALL)
    assert (about.jobs, about.span_seconds, about.gpu_hours, about.estimated) == (3, 7200.0, 9.5, False)
    assert about.mean_load_gpus == 4.75
    assert [(g.name, g.jobs, g.gpu_hours) for g in about.sizes] == [("1", 2, 1.5), ("4", 1, 8.0)]
    assert [(g.name, g.jobs) for g in about.tenants] == [("default", 2), ("x", 1)]
    percentiles = about.duration_percentiles
    assert (percentiles["min"], percentiles["median"], percentiles["max"]) == (1800.0, 3600.0, 7200.0)
    assert percentiles["p75"] == 5400.0


def test_the_text_says_what_was_left_out_and_draws_the_sizes() -> None:
    text = "\n".join(describe(SMALL).lines())
    assert "small: 3 jobs (shoal) over 2.0 h" in text
    assert "5 jobs without a GPU left out" in text
    assert "1 broken rows skipped" in text
    assert "9.5 GPU-hours, 4.8 GPUs busy on average" in text
    bars = {line.split()[0]: line.count("█") for line in text.splitlines() if "█" in line}
    assert bars["1"] == 2 * bars["4"]


def test_run_times_of_named_models_are_estimates_and_unknown_models_are_counted() -> None:
    workload = generate("demo", jobs=50, seed=0)
    about = describe(workload)
    assert about.estimated
    assert (about.unknown, about.elastic > 0, about.adaptive > 0) == (0, True, True)
    assert about.gpu_hours == pytest.approx(sum(g.gpu_hours for g in about.models))
    assert "about " in about.lines()[1]
    strange = Workload("w", (Job(id="a", submitted=0.0, gpus=1, work=5.0, model="no such model"),))
    assert (describe(strange).unknown, describe(strange).duration_percentiles) == (1, {})
    assert "1 jobs of unknown run time" in "\n".join(describe(strange).lines())


def test_a_description_is_plain_json() -> None:
    document = json.loads(json.dumps(describe(SMALL).as_dict()))
    assert document["jobs"] == 3
    assert document["sizes"][1] == {"name": "4", "jobs": 1, "gpu_hours": 8.0}
    assert document["left_out"] == {"jobs without a GPU": 5}
