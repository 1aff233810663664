"""Fixtures of the provider tests."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.provider.ray_cluster import RayCluster, ray_cluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests on one engine together: `make test-engines` runs Slurm's and Ray's side by side."""
    for item in items:
        if item.get_closest_marker("engines"):
            item.add_marker(pytest.mark.xdist_group("ray" if "ray" in item.path.name else "slurm"))


@pytest.fixture(scope="session")
def ray() -> Iterator[RayCluster]:
    """A real Ray for all tests: a head, and the nodes n1 and n2; a test leaves both running and without actors."""
    with tempfile.TemporaryDirectory() as name, ray_cluster(Path(name) / "ray") as cluster:
        yield cluster
