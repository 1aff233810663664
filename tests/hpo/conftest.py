"""A real cluster of processes for apps to search on, and a training that prints its losses."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from shoal.core.topology import parse_cluster
from shoal.live.home import Settings
from shoal.provider.local import LocalNodes
from shoal.scenario.scenario import Scenario
from shoal.serve.service import Address, run_service
from shoal.wire.client import Client

TRAIN = """
import os, pathlib, sys, time
trial, until, seconds, folder = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
state = pathlib.Path(folder, f"trial-{trial}")
print("trained so far:", state.read_text() if state.exists() else "nothing", flush=True)
print(f"loss {trial / 10}", flush=True)
time.sleep(seconds)
state.write_text(str(until))
"""
"""The lower the number, the better the trial; each leg goes on where the last one ended."""

Cluster = Callable[[Path, str], AbstractContextManager[Client]]


def _patiently() -> bool:
    time.sleep(0.05)
    return False


@contextmanager
def _cluster(folder: Path, policy: str) -> Iterator[Client]:
    settings = Settings(folder / "home", Scenario(parse_cluster("gpu:2x2"), policy), roots=(str(folder),))
    settings.home.mkdir()
    with run_service(settings, Address()) as made:
        local = LocalNodes.of(
            made.listening.url, made.agent_token, settings.scenario.cluster.nodes, settings.home, roots=settings.roots
        )
        client = Client(made.listening.url, made.admin_token)
        try:
            local.ensure_running()
            while made.control_plane.cluster().up_gpus < 4:
                time.sleep(0.05)
            yield client
        finally:
            client.close()
            local.stop(_patiently)


@pytest.fixture
def cluster() -> Cluster:
    """Two nodes of two GPUs on this machine, in a folder that has ``train.py`` and, in ``home``, the journal."""

    @contextmanager
    def begun(folder: Path, policy: str) -> Iterator[Client]:
        (folder / "train.py").write_text(TRAIN)
        with _cluster(folder, policy) as client:
            yield client

    return begun
