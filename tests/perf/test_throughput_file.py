"""Reading a throughput file: Gavel's format in, a catalogue out, and a clear word about anything else."""

import json
from pathlib import Path

import pytest

from shoal.core.errors import InputError
from shoal.core.topology import Locality
from shoal.perf.catalog import catalog
from shoal.perf.throughput_file import parse_table, read_table

SAME, NODE = Locality.SAME_NODE, Locality.CROSS_NODE
SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "gavel" / "simulation_throughputs.json"

A, B, A2 = "('Mine (batch size 8)', 1)", "('GAN', 1)", "('Mine (batch size 8)', 2)"
FILE = {
    "k80": {A: {"null": 1.0, B: [0.1, 0.1]}, B: {"null": 1.0}},
    "v100": {A: {"null": 10.0, A: [4.0, 4.0], B: [5.0, 3.0]}, B: {"null": 4, A: [3.0, 5.0]}, A2: {"null": 16.0}},
    "v100_unconsolidated": {A: {"null": 10.0}, A2: {"null": 12.0}},
    "h100_unconsolidated": {A2: {"null": 50.0}},
}


def test_rates_are_steps_times_the_batch_size_per_gpu() -> None:
    read = parse_table(json.dumps(FILE).encode(), "my.json")
    mine, gan = read.profile("Mine"), read.profile("GAN")
    assert read.kinds == ("k80", "v100", "h100")
    assert mine.rate("v100", 1, SAME, 8) == 80.0
    assert mine.rate("v100", 2, SAME, 8) == 128.0
    assert mine.rate("v100", 2, NODE, 8) == 96.0
    assert gan.rate("v100", 1, SAME) == 4.0, "a type that names no batch size counts a step as a sample"
    assert mine.rate("h100", 2, SAME, 8) == 400.0, "measured only apart: at least that fast together"
    assert {t.source for t in read.types()} == {"throughput file my.json"}


def test_pairs_are_fractions_of_the_rates_alone_and_the_v100_counts() -> None:
    read = parse_table(json.dumps(FILE).encode(), "my.json")
    assert read.colocated("Mine", 8, "GAN", 1) == (0.5, 0.75)
    assert read.colocated("GAN", 1, "Mine", 8) == (0.75, 0.5)
    assert read.colocated("Mine", 8, "Mine", 8) == (0.4, 0.4)


def test_a_file_extends_the_built_in_catalogue(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(FILE))
    both = catalog().extended(read_table(path))
    assert both.profile("Mine").rate("v100", 1, SAME, 8) == 80.0
    assert both.profile("ResNet-50") == catalog().profile("ResNet-50")
    assert both.colocated("Mine", 8, "GAN", 1) == (0.5, 0.75)


def test_gavels_own_file_gives_the_built_in_figures() -> None:
    if not SHARED.exists():
        pytest.skip("no shared data")
    read = read_table(SHARED)
    assert len(read.types()) == 26
    for entry in read.types():
        for kind in entry.kinds:
            for gpus in (1, 2, 4, 8):
                for locality in Locality:
                    ours = catalog().extended(read).profile(entry.model).rate(kind, gpus, locality, entry.batch_size)
                    built_in = catalog().profile(entry.model).rate(kind, gpus, locality, entry.batch_size)
                    assert ours == pytest.approx(built_in, rel=1e-4)
    assert read.colocated("LM", 5, "LM", 80) == pytest.approx(catalog().colocated("LM", 5, "LM", 80), rel=5e-3)


BAD = [
    ("text that is not JSON", "{", "not a throughput file"),
    ("a list", "[]", "not a throughput file"),
    ("no figures", "{}", "has no figures"),
    ("a key that is code", {"v100": {"__import__('os')": {"null": 1.0}}}, "not a job type"),
    ("a key without GPUs", {"v100": {"ResNet-50": {"null": 1.0}}}, "not a job type"),
    ("zero GPUs", {"v100": {"('GAN', 0)": {"null": 1.0}}}, "not a job type"),
    ("no rate alone", {"v100": {A: {B: [1.0, 1.0]}}}, 'has no "null"'),
    ("a rate that is text", {"v100": {A: {"null": "fast"}}}, "'fast': wanted a rate"),
    ("a rate that is true", {"v100": {A: {"null": True}}}, "True: wanted a rate"),
    ("a negative rate", {"v100": {A: {"null": -1}}}, "-1: wanted a rate"),
    ("a pair of one", {"v100": {A: {"null": 1.0, A: [1.0]}}}, "wanted two rates"),
    ("a pair with a word", {"v100": {A: {"null": 1.0, A: [1.0, "x"]}}}, "'x': wanted a rate"),
    ("a partner that is no type", {"v100": {A: {"null": 1.0, "b": [1.0, 1.0]}}}, "not a job type"),
]


@pytest.mark.parametrize(("file", "hint"), [c[1:] for c in BAD], ids=[c[0] for c in BAD])
def test_refused_with_the_file_named(file: object, hint: str) -> None:
    text = file if isinstance(file, str) else json.dumps(file)
    with pytest.raises(InputError) as caught:
        parse_table(text.encode(), "my.json")
    assert "my.json" in str(caught.value)
    assert hint in str(caught.value)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.json.*name a readable JSON file"):
        read_table(tmp_path / "gone.json")
