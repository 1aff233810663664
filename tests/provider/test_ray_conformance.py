"""The story that every provider is held to, on a real Ray."""

import sys
from pathlib import Path

import pytest
from tests.provider.provider_story import run_story
from tests.provider.ray_cluster import RayCluster, wait_for
from tests.provider.ray_engine import RayEngine, StrangerDriver, provider_on


@pytest.mark.engines
def test_ray_keeps_the_promises_of_a_provider(ray: RayCluster, tmp_path: Path) -> None:
    provider, stranger = provider_on(ray, tmp_path / "home"), StrangerDriver(ray)
    try:
        seconds = run_story(lambda _: RayEngine(ray, provider, stranger), tmp_path, away_seconds=30.0)
        print("\n".join(f"{spent:6.2f} s  {step}" for step, spent in seconds.items()), file=sys.stderr)
    finally:
        for one in provider.seen():
            if one.state.open:
                provider.close(one.ref, 0.0)
        wait_for(lambda: not any(one.state.open for one in provider.seen()))
        provider.connection.close()
        stranger.leave()
