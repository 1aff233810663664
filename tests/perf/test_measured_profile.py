"""Measured profiles: given back where measured, linear between, read from folders and refused if broken."""

import csv
from collections.abc import Callable
from math import isclose
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InputError
from shoal.core.topology import Locality
from shoal.perf.catalog import catalog
from shoal.perf.measured_profile import QUIETEST, Cell, MeasuredProfile, NoiseTable, StepTable
from shoal.perf.profile_files import read_profiles

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
APPLICATIONS = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")


def cell(seats: tuple[int, ...], local: int, step: float, sync: float) -> Cell:
    return Cell(len(seats), sum(seats), local, step, sync, seats)


TABLE = StepTable(
    (
        cell((1,), 10, 1.0, 0.0),
        cell((1,), 30, 2.0, 0.0),
        cell((2,), 10, 1.2, 0.2),
        cell((2,), 30, 2.4, 0.4),
        cell((1, 2), 10, 2.0, 1.0),
        cell((1, 2), 30, 3.0, 1.0),
        Cell(4, 8, 10, 4.0, 2.0),
        Cell(4, 8, 30, 6.0, 2.0),
        Cell(4, 4, 10, 3.0, 2.0),
        Cell(4, 4, 30, 5.0, 2.0),
    ),
    least_local=10,
    most_local=30,
)


@pytest.mark.parametrize(
    ("seats", "local", "passing", "step"),
    [
        ((1,), 10, 1.0, 1.0),
        ((2,), 30, 2.0, 2.4),
        ((2,), 20, 1.5, 1.8),
        ((2, 1), 10, 1.0, 2.0),
        ((1,), 4, 1.0, 1.0),
        ((1,), 50, 3.0, 3.0),
        ((1, 2, 1, 2), 20, 2.5, 4.5),
        ((3,), 10, 1.0, 2.0),
        ((9,) * 9, 10, 2.0, 4.0),
    ],
    ids=[
        "as measured",
        "as measured on two GPUs",
        "half way between two batch sizes",
        "seats in another order round the ring",
        "fewer samples than measured are no faster",
        "more samples than measured go on as the last two",
        "four nodes and six GPUs, between four and eight",
        "more GPUs on a node than measured count as two nodes",
        "far beyond, as the nearest",
    ],
)
def test_a_step_takes_what_was_measured_and_between_measurements_is_linear(
    seats: tuple[int, ...], local: int, passing: float, step: float
) -> None:
    taken = TABLE.seconds(seats, local)
    assert [taken.passing, taken.step] == pytest.approx([passing, step])


def test_a_slowdown_multiplies_passes_and_steps() -> None:
    slow = StepTable(TABLE.cells, 10, 30, slowdown=1.5).seconds((2,), 10)
    assert [slow.passing, slow.step] == pytest.approx([1.5, 1.8])


NOISE = NoiseTable((8, 32), np.array([800.0, 1600.0]), np.array([[1.0, 0.0], [3.0, 2.0]]), np.array([[2.0, 1.0]] * 2))
PROFILE = MeasuredProfile({"t4": TABLE}, NOISE)


@pytest.mark.parametrize(
    ("progress", "batch", "noise"),
    [(0.0, 8, 16.0), (0.49, 32, 16 / 3), (0.0, 20, 8.0), (0.5, 32, 4.0), (1.0, 32, 4.0), (0.7, 8, QUIETEST)],
)
def test_the_noise_scale_is_that_of_the_epoch_at_the_batch_size(progress: float, batch: int, noise: float) -> None:
    assert PROFILE.noise_scale(progress, batch) == pytest.approx(noise)


def test_a_fixed_batch_takes_its_training_as_long_as_epoch_by_epoch() -> None:
    # 32 samples on one GPU are two passes of 16; an effective sample costs (φ + 32)/(φ + 8) samples.
    seconds = 2 * TABLE.seconds((1,), 16).step
    total = sum(800.0 * (noise + 32) / (noise + 8) for noise in (16 / 3, 4.0)) / 32 * seconds
    assert pytest.approx(total) == PROFILE.work / PROFILE.rate("t4", 1, Locality.SAME_NODE, 32)
    assert PROFILE.rate("t4", 1, Locality.SAME_NODE, 33) == PROFILE.rate("k80", 1, Locality.SAME_NODE, 32) == 0.0


@given(st.integers(1, 40), st.sampled_from([Locality.SAME_NODE, Locality.CROSS_NODE]))
def test_packed_seats_hold_the_gpus_on_nodes_that_were_measured(gpus: int, locality: Locality) -> None:
    seats = TABLE.packed(gpus, locality)
    assert sum(seats) == gpus
    assert max(seats) <= TABLE.node_gpus
    assert locality is Locality.SAME_NODE or len(seats) > 1 or gpus == 1


# ── folders ───────────────────────────────────────────────────────────────────────────────────────────────────────

PLACEMENTS = "placement,local_bsz,step_time,sync_time\n1,4,0.5,0.1\n12,4,0.9,0.2\n"
SCALABILITY = "num_nodes,num_replicas,local_bsz,step_time,sync_time\n3,6,4,1.5,0.4\n"
VALIDATION = "progress,iteration,metric,grad_sqr,grad_var\n100.0,100,0.5,2.0,4.0\n200.0,200,0.6,1.0,4.0\n"
SOUND = {"placements.csv": PLACEMENTS, "scalability.csv": SCALABILITY, "validation-12.csv": VALIDATION}


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[dict[str, str]], str]:
    """A folder of profiles with one model, bert, made of these files."""

    def made(files: dict[str, str]) -> str:
        (tmp_path / "bert").mkdir()
        for name, text in files.items():
            (tmp_path / "bert" / name).write_text(text)
        return str(tmp_path)

    return made


def test_a_folder_is_read_as_it_is_written(folder: Callable[[dict[str, str]], str]) -> None:
    read = read_profiles([folder(SOUND)], ["bert", "cifar10"])
    profile = read.profile("bert")
    assert isinstance(profile, MeasuredProfile)
    assert (read.models, profile.kinds, profile.work, read.work("bert")) == (("bert",), ("t4",), 2400.0, 2400.0)
    taken = profile.times["t4"].seconds((2, 1), 4)
    assert [taken.passing, taken.step] == pytest.approx([0.7, 0.9])
    assert [profile.noise_scale(at) for at in (0.0, 0.5)] == [24.0, 48.0]


def test_sias_files_name_the_machine_and_are_slowed_down(folder: Callable[[dict[str, str]], str]) -> None:
    named = {name.replace(".csv", "-rtx.csv"): text for name, text in SOUND.items() if "validation" not in name}
    unknown = {"placements-cray.csv": "junk"}
    profile = read_profiles([folder({**named, **unknown, "validation-12.csv": VALIDATION})], ["bert"]).profile("bert")
    assert isinstance(profile, MeasuredProfile)
    assert profile.kinds == ("rtx2080ti",)
    assert profile.times["rtx2080ti"].seconds((1,), 4).step == pytest.approx(1.2 * 0.5)


BROKEN = {
    "no step times": ({"placements.csv": None}, "profiles", "has no placements.csv"),
    "no many-node times": ({"scalability.csv": None}, "profiles", "No such file"),
    "no training": ({"validation-12.csv": None}, "profiles", "has no validation-<B>.csv"),
    "a column missing": ({"placements.csv": "placement,local_bsz\n"}, "header", "has no column step_time"),
    "a word for a number": ({"placements.csv": PLACEMENTS + "1,x,1,0\n"}, "local_bsz", "is not a number"),
    "a field missing": ({"scalability.csv": SCALABILITY + "3,6,4,1.5\n"}, "sync_time", "is not a number"),
    "an endless step": ({"placements.csv": PLACEMENTS + "1,4,inf,0\n"}, "step_time", "finite"),
    "a step of no time": ({"placements.csv": PLACEMENTS + "1,4,0,0\n"}, "step_time", "above 0"),
    "all of a step waiting": ({"placements.csv": PLACEMENTS + "1,4,1,1\n"}, "sync_time", "below step_time"),
    "no samples": ({"placements.csv": PLACEMENTS + "1,0,1,0\n"}, "local_bsz", "at least 1"),
    "a node without GPUs": ({"placements.csv": PLACEMENTS + "101,4,1,0\n"}, "placement", "for each node"),
    "more nodes than GPUs": ({"scalability.csv": SCALABILITY + "7,6,4,1,0\n"}, "num_nodes", "which are 6"),
    "no rows": ({"placements.csv": PLACEMENTS.splitlines()[0]}, "rows", "holds no measurement"),
    "no epochs": ({"validation-12.csv": VALIDATION.splitlines()[0]}, "rows", "holds no epoch"),
    "epochs that go back": ({"validation-12.csv": VALIDATION + "150,1,1,1,1\n"}, "progress", "must ascend"),
    "a variance below 0": ({"validation-12.csv": VALIDATION + "300,1,1,1,-1\n"}, "grad_var", "at least 0"),
}


@pytest.mark.parametrize(("files", "field", "hint"), BROKEN.values(), ids=BROKEN.keys())
def test_what_is_broken_is_named_with_its_file(
    folder: Callable[[dict[str, str]], str], files: dict[str, str | None], field: str, hint: str
) -> None:
    there = {name: text for name, text in {**SOUND, **files}.items() if text is not None}
    with pytest.raises(InputError) as caught:
        read_profiles([folder(there)], ["bert"])
    assert (caught.value.field, hint in caught.value.hint) == (field, True)
    wrong = next(iter(files))
    if files[wrong] is not None:
        rows = len((files[wrong] or "").splitlines())
        assert f"{wrong}:{rows}" in caught.value.where or caught.value.where.endswith(wrong)


# ── the public folders ────────────────────────────────────────────────────────────────────────────────────────────


def traces(name: str) -> str:
    folder = SHARED / name / "traces"
    if not folder.is_dir():
        pytest.skip("the public files are not here")
    return str(folder)


@pytest.mark.parametrize("model", APPLICATIONS)
def test_public_measurements_are_given_back_and_the_work_is_the_catalogues(model: str) -> None:
    profile = read_profiles([traces("pollux")], [model]).profile(model)
    assert isinstance(profile, MeasuredProfile)
    assert isclose(profile.work, catalog().work(model) or 0.0, rel_tol=1e-5), "two ways to the same epochs"
    with (SHARED / "pollux" / "traces" / model / "placements.csv").open() as file:
        for row in list(csv.DictReader(file))[::97]:
            taken = profile.times["t4"].seconds(tuple(map(int, row["placement"])), int(row["local_bsz"]))
            assert taken.step == pytest.approx(float(row["step_time"]))
            assert taken.passing == pytest.approx(float(row["step_time"]) - float(row["sync_time"]))


def test_sias_step_times_come_with_polluxs_trainings() -> None:
    profile = read_profiles([traces("sia"), traces("pollux")], ["cifar10"]).profile("cifar10")
    assert isinstance(profile, MeasuredProfile)
    assert set(profile.kinds or ()) == {"t4", "v100", "a100", "rtx6000", "rtx2080ti"}
    own = read_profiles([traces("pollux")], ["cifar10"]).profile("cifar10")
    there, here = (p.rate("t4", 4, Locality.SAME_NODE, 1024) for p in (profile, own))
    assert here == pytest.approx(1.8 * there), "Sia slows its step times down to what its testbed measured"
