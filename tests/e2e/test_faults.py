"""Things die at random moments, for a few seeds: `make soak` is the same for two hundred."""

from pathlib import Path

import pytest
from tests.e2e.site import Site
from tests.e2e.trial import GPUS, NODES, OPTIONS, POLICIES, Plan, Trial, ready

SEEDS = dict(zip(POLICIES, ((0, 12), (23, 33), (41, 44)), strict=True))
"""Between them they strike all there is to strike but keepers and pauses, and one silence outlasts the lease."""


@pytest.mark.parametrize("policy", POLICIES)
def test_whatever_is_killed_or_cut_no_job_is_lost_or_runs_twice_and_nothing_is_left(
    policy: str, tmp_path: Path
) -> None:
    site = Site(tmp_path, (NODES, GPUS), [*OPTIONS, "--policy", policy])
    try:
        ready(site)
        for seed in SEEDS[policy]:
            Trial(site, Plan.of(seed)).run()
    finally:
        statuses = site.close()
    assert statuses == [0] * (NODES + 1)
