"""That what the library costs can be measured; how much it is, ``shoal bench`` says."""

import pytest

pytest.importorskip("torch")

from shoal.research.trials.step_overhead import MODES, STEP_SECONDS, extra_seconds


def test_each_mode_of_training_is_timed_beside_a_plain_step_of_the_given_length() -> None:
    found = extra_seconds(ranks=2, rounds=2, steps=5)
    assert set(found) == set(MODES)
    assert found["plain"] >= STEP_SECONDS
    assert all(found["plain"] + found[mode] >= STEP_SECONDS for mode in MODES[1:])
