"""AFS's models: assumed curves that peak where Table 4 says they do."""

from itertools import pairwise

import pytest

from shoal.core.topology import Locality
from shoal.perf.afs_profiles import AFS_MODELS, PeakedProfile
from shoal.perf.catalog import catalog

TABLE_4 = {
    "afs-vgg16": (256, 8),
    "afs-googlenet": (128, 20),
    "afs-inception-v4": (256, 52),
    "afs-resnet-50": (128, 28),
    "afs-dcgan": (256, 20),
    "afs-video-prediction": (64, 28),
    "afs-chatbot": (256, 4),
    "afs-deepspeech2": (64, 20),
    "afs-transformer": (256, 44),
}


def test_the_models_are_those_of_table_4() -> None:
    assert {name: (p.batch_size, p.peak_gpus) for name, p in AFS_MODELS.items()} == TABLE_4


@pytest.mark.parametrize("profile", AFS_MODELS.values(), ids=AFS_MODELS.keys())
def test_a_curve_rises_ever_more_slowly_to_its_peak_and_falls_beyond(profile: PeakedProfile) -> None:
    peak = profile.peak_gpus
    curve = [profile.speedup(k) for k in range(2 * peak)]
    steps = [b - a for a, b in pairwise(curve)]
    assert curve[1] == 1.0
    assert max(range(2 * peak), key=curve.__getitem__) == peak
    assert all(before > after > 0 for before, after in pairwise(steps[:peak]))
    assert steps[peak] < 0


def test_distance_and_batch_size_play_no_part_and_other_kinds_have_no_figures() -> None:
    profile = catalog().profile("afs-resnet-50")
    rates = {profile.rate("gtx1080", 8, locality, size) for locality in Locality for size in (None, 64, 128)}
    assert rates == {AFS_MODELS["afs-resnet-50"].speedup(8)}
    assert profile.rate("v100", 8, Locality.SAME_NODE) == 0.0
    assert catalog().default_batch("afs-resnet-50") == 128


def test_the_catalogue_says_that_they_are_assumed() -> None:
    entries = [t for t in catalog().types() if t.model.startswith("afs-")]
    assert len(entries) == len(TABLE_4)
    assert all(t.source.startswith("assumed") and not t.per_gpu_batch for t in entries)
