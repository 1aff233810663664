"""That what the library costs can be measured; how much it is, ``shoal bench`` says."""

import pytest

pytest.importorskip("torch")

from shoal.research.trials.step_overhead import STEP_SECONDS, WAYS, extra_seconds


def test_each_way_of_training_is_timed_beside_a_plain_step_that_takes_as_long_as_was_said() -> None:
    found = extra_seconds(ranks=2, turns=2, steps=5)
    assert set(found) == set(WAYS)
    assert found["plain"] >= STEP_SECONDS
    assert all(found["plain"] + found[way] >= STEP_SECONDS for way in WAYS[1:])
