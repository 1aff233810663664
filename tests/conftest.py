"""One profile for all property tests: no deadlines (the machines differ), the same examples everywhere in CI.

Ctrl-C is heard even where the shell that started the tests in the background had it ignored: some tests press it.
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

signal.signal(signal.SIGINT, signal.default_int_handler)


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
