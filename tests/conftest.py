"""Settings of all tests: hypothesis profiles, the marker ``fast``, and a fixture that runs a command line.

Property tests have no deadlines, since machines differ, and use the same examples everywhere in CI. Each test
begins with Python's own handlers of SIGINT and SIGTERM: a shell may start tests in the background with SIGINT ignored,
and `shoal up`, run in this process by an earlier test, sets handlers of its own.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from shoal.cli import main

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "local")

FAST = ("core", "engine", "store", "jobspec", "wire", "live", "workload")
"""Folders whose tests start no process and take little CPU time: ``pytest -m fast`` runs them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of ``FAST``."""
    root = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(root) and str(item.path.relative_to(root)).startswith(FAST):
            item.add_marker(pytest.mark.fast)


@pytest.fixture(autouse=True)
def _signal_handlers() -> None:
    """Set Python's own handlers of SIGINT and SIGTERM."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.fixture
def shoal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs a command line in an empty folder; gives its exit code and what it wrote on stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*args: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(args)
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capsys.readouterr()

    return run
