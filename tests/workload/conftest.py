from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.workload.files import read_workload
from shoal.workload.schema import Workload

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"


@pytest.fixture
def shared() -> Path:
    """The folder of public files, for tests that read them; such tests skip where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("the public files are not here")
    return SHARED


@pytest.fixture
def reading(tmp_path: Path) -> Callable[..., Workload]:
    """Write text under a name and read it as a workload."""

    def read(text: str, name: str, **options: object) -> Workload:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return read_workload(path, **options)  # type: ignore[arg-type]

    return read
