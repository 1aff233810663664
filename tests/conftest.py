"""Settings of all tests: hypothesis profiles, parts of the tests, and a fixture that runs a command line.

Property tests have no deadlines, since machines differ, and use the same examples everywhere in CI. Each test
begins with Python's own handlers of SIGINT and SIGTERM, and with a umask of 022: a shell may start tests in the
background with SIGINT ignored, and `shoal up`, run in this process by an earlier test, sets handlers and a umask.
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

LONG = (
    "conformance/test_a_thousand_worlds.py",
    "e2e/test_one_market.py",
    "e2e/test_printed_commands.py",
    "e2e/test_resize.py",
    "e2e/test_twin.py",
    "live/test_year.py",
    "policy/test_gavel_evaluation.py",
    "policy/test_gavel_public.py",
    "policy/test_ossp.py",
    "research",
    "scenario/test_profiles.py",
    "serve/test_openapi.py",
    "sim/test_reference.py",
    "solve/test_consolidation.py",
    "solve/test_linear_objectives.py",
    "solve/test_prices_reference.py",
    "solve/test_shared_levels.py",
    "solve/test_space_sharing.py",
    "solve/test_window.py",
    "trainer/test_binding.py",
    "trainer/test_examples.py",
    "trainer/test_gpu_example.py",
    "trainer/test_overhead.py",
    "trainer/test_pytorch.py",
)
"""Files and folders of tests that take long: references solved by other programs, published results, real training.
``--part rest`` leaves them out (`make test`), ``--part long`` runs them alone (`make test-long`)."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that chooses a part of the tests."""
    parser.addoption("--part", choices=("all", "rest", "long"), default="all", help="which tests to run")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files that are not of the chosen part."""
    part = config.getoption("--part")
    if part == "all" or collection_path.is_dir():
        return None
    root = Path(__file__).parent
    long = collection_path.is_relative_to(root) and str(collection_path.relative_to(root)).startswith(LONG)
    return True if long != (part == "long") else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of ``FAST``."""
    root = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(root) and str(item.path.relative_to(root)).startswith(FAST):
            item.add_marker(pytest.mark.fast)


@pytest.fixture(autouse=True)
def _process_settings() -> None:
    """Set Python's own handlers of SIGINT and SIGTERM, and the usual umask."""
    os.umask(0o022)
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
