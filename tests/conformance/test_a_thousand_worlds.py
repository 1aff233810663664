"""The thousand random worlds of which `tests.ring.test_unsaved_worlds` tries a hundred at each change."""

import pytest
from tests.ring.test_unsaved_worlds import check_world


@pytest.mark.parametrize("hundred", range(1, 10))
def test_every_job_ends_and_no_work_above_the_limit_is_lost(hundred: int) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        check_world(seed)
