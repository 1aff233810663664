"""Fixtures of the provider tests."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.provider.ray_cluster import RayCluster, ray_cluster


@pytest.fixture(scope="session")
def ray() -> Iterator[RayCluster]:
    """A real Ray for all tests: a head, and the nodes n1 and n2; a test leaves both running and without actors."""
    with tempfile.TemporaryDirectory() as name, ray_cluster(Path(name) / "ray") as cluster:
        yield cluster
