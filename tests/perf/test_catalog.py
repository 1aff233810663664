"""The built-in catalogue: broad enough, every figure sourced, and equal to the public data it was taken from."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InputError
from shoal.core.topology import Locality
from shoal.perf.catalog import TIME_SLICED, Catalog, catalog
from shoal.perf.profile import MeasuredRate, ScalingProfile, TableProfile

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
SAME, NODE = Locality.SAME_NODE, Locality.CROSS_NODE


def shared(path: str) -> Any:
    """A public file, or a skip where the data folder is not beside the project."""
    file = DATA / path
    if not file.exists():
        pytest.skip(f"no shared data: {path}")
    return json.loads(file.read_text())


def test_there_are_at_least_twenty_types_on_at_least_five_kinds() -> None:
    assert len(catalog().types()) >= 20
    assert len(catalog().kinds) >= 5
    assert len({(t.model, t.batch_size) for t in catalog().types()}) == len(catalog().types())


def test_every_type_names_the_paper_it_comes_from_and_the_commit_or_the_table() -> None:
    for entry in catalog().types():
        for source in entry.source.split("; fitted"):
            assert "20" in source, entry
            assert ("GitHub" in source and "commit" in source) or "Table" in source, entry
        assert entry.kinds, entry


def test_every_type_runs_on_every_kind_it_names() -> None:
    for entry in catalog().types():
        for kind in entry.kinds:
            assert catalog().profile(entry.model).rate(kind, 1, SAME, entry.batch_size) > 0, (entry, kind)


def test_the_catalogue_is_read_once() -> None:
    assert catalog() is catalog()


def test_an_unknown_model_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(InputError, match=r"model: 'ResNet-5': unknown; did you mean .*ResNet-50"):
        catalog().profile("ResNet-5")


DEFAULTS = [("ResNet-50", 64), ("LM", 20), ("A3C", 1), ("bert", 12), ("imagenet", 200)]


@pytest.mark.parametrize(("model", "batch"), DEFAULTS)
def test_the_default_batch_size_is_the_initial_or_the_middle_one(model: str, batch: int) -> None:
    assert catalog().default_batch(model) == batch
    profile = catalog().profile(model)
    assert profile.rate("v100", 1, SAME) == profile.rate("v100", 1, SAME, batch) > 0


def test_total_work_is_known_for_pollux_models_only() -> None:
    assert catalog().work("cifar10") == pytest.approx(128 * 39062.9, rel=1e-5)
    assert catalog().work("ResNet-50") is None


@pytest.mark.parametrize("kind", ["k80", "p100", "v100"])
@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
def test_figures_equal_gavels(kind: str, gpus: int) -> None:
    table = shared("gavel/simulation_throughputs.json")
    for entry in (t for t in catalog().types() if t.per_gpu_batch):
        key = f"('{entry.model} (batch size {entry.batch_size})', {gpus})"
        if key not in table[kind]:
            key = f"('{entry.model}', {gpus})"
        if key not in table[kind]:
            continue
        profile = catalog().profile(entry.model)
        together = table[kind][key]["null"] * entry.batch_size
        assert profile.rate(kind, gpus, SAME, entry.batch_size) == pytest.approx(together, rel=1e-4)
        if key in table[f"{kind}_unconsolidated"]:
            apart = table[f"{kind}_unconsolidated"][key]["null"] * entry.batch_size
            wanted = pytest.approx(min(apart, together), rel=1e-4)
            assert profile.rate(kind, gpus, NODE, entry.batch_size) == wanted


def test_rtx5000_figures_equal_shockwaves() -> None:
    table = shared("shockwave/throughputs/tacc_throughputs.json")["v100"]
    for model, batch, gpus in [("ResNet-18", 32, 1), ("ResNet-50", 128, 8), ("LM", 80, 4), ("Recommendation", 512, 1)]:
        steps = table[f"('{model} (batch size {batch})', {gpus})"]["null"]
        rate = catalog().profile(model).rate("rtx5000", gpus, SAME, batch)
        assert rate == pytest.approx(steps * batch, rel=1e-4)
    assert catalog().profile("Transformer").rate("rtx5000", 1, SAME, 256) == 0.0


def test_step_times_equal_the_fitted_ones() -> None:
    fitted = shared("pollux/fitted.json")["sia_by_gpu_type"]
    names = {"t4": "aws", "v100": "azure", "a100": "dgx-ext", "rtx6000": "quad", "rtx2080ti": "rtx"}
    for model, profile in catalog().profiles.items():
        if isinstance(profile, ScalingProfile):
            assert set(profile.times) == set(names)
            for kind, times in profile.times.items():
                p = fitted[model][names[kind]]["perf_params"]
                assert times.compute == pytest.approx((p["alpha_c"], p["beta_c"]), rel=1e-4)
                assert times.node == pytest.approx((p["alpha_r"], p["beta_r"]), rel=1e-4)
                assert times.gamma == pytest.approx(p["gamma"], rel=1e-4)
                if times.network is not None:
                    assert times.network == pytest.approx((p["alpha_n"], p["beta_n"]), rel=1e-4)


def test_mean_efficiency_agrees_with_the_measured_trainings() -> None:
    fitted = shared("pollux/fitted.json")["pollux_g4dn12xlarge_T4"]
    for model, entry in fitted.items():
        profile = catalog().profiles[model]
        assert isinstance(profile, ScalingProfile)
        for batch, run in entry["by_batch_size"].items():
            seen = run["progress"] * profile.initial_batch / (run["iterations"] * int(batch))
            assert profile.efficiency(int(batch)) == pytest.approx(seen, rel=0.12), (model, batch)


def test_colocated_fractions_equal_gavels_pairs() -> None:
    table = shared("gavel/simulation_throughputs.json")["v100"]
    a, b = "('ResNet-50 (batch size 32)', 1)", "('A3C', 1)"
    seen = (table[a][b][0] / table[a]["null"], table[a][b][1] / table[b]["null"])
    assert catalog().colocated("ResNet-50", 32, "A3C", None) == pytest.approx(seen, rel=5e-3)


measured = st.sampled_from([(t.model, t.batch_size) for t in catalog().types() if t.per_gpu_batch])


@given(a=measured, b=measured)
def test_measured_pairs_keep_fractions_that_swap_with_the_jobs(a: tuple[str, int], b: tuple[str, int]) -> None:
    one, other = catalog().colocated(*a, *b)
    assert catalog().colocated(*b, *a) == (other, one)
    assert 0.0 <= one <= 1.0
    assert (one == 0.0) == (other == 0.0)


@pytest.mark.parametrize("model", [None, "bert", "something new"])
def test_an_unmeasured_pair_takes_turns(model: str | None) -> None:
    assert catalog().colocated("ResNet-50", 32, model, None) == TIME_SLICED
    assert catalog().colocated(model, None, "ResNet-50", 32) == TIME_SLICED
    assert TIME_SLICED[0] == TIME_SLICED[1]


def laid_over(model: str, profile: TableProfile) -> Catalog:
    kinds = {(model, kind): "my own" for kind in profile.kinds or ()}
    return catalog().extended(Catalog({model: profile}, kinds))


def test_laying_a_table_over_a_table_keeps_what_it_does_not_name() -> None:
    over = laid_over(
        "Recommendation",
        TableProfile({512: {"h100": (MeasuredRate(1, 9e5),)}, 16384: {"v100": (MeasuredRate(1, 7.0),)}}),
    )
    profile = over.profile("Recommendation")
    assert profile.rate("h100", 1, SAME, 512) == 9e5
    assert profile.rate("v100", 1, SAME, 16384) == 7.0
    assert profile.rate("k80", 1, SAME, 512) == catalog().profile("Recommendation").rate("k80", 1, SAME, 512)
    assert profile.rate("v100", 2, SAME, 512) == 0.0, "not data parallel, whoever measures it"
    assert "h100" in over.kinds
    assert "h100" not in catalog().kinds


def test_laying_a_table_over_a_fitted_model_replaces_it() -> None:
    over = laid_over("bert", TableProfile({8: {"h100": (MeasuredRate(1, 500.0),)}}))
    assert over.profile("bert").kinds == ("h100",)
    assert over.work("bert") is None
    assert [t.source for t in over.types() if t.model == "bert"] == ["my own"]
