"""The command line, called in this process."""

from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.cli import main


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
