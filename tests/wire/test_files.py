"""Small files are replaced whole, with the mode that was asked for, and nothing is left beside them."""

import os
from pathlib import Path

import pytest

from shoal.wire.files import replace_file


def test_a_file_is_made_and_then_replaced(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    for data in (b"first", b"second", b""):
        replace_file(path, data)
        assert path.read_bytes() == data
    assert list(tmp_path.iterdir()) == [path]


def test_a_private_file_is_its_owners_alone_and_any_other_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        replace_file(tmp_path / "token", b"secret", mode=0o600)
        replace_file(tmp_path / "summary", b"{}")
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("token", "summary")] == [0o600, 0o644]


def test_where_writing_fails_the_old_file_stays_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    (path / "file").mkdir(parents=True)
    with pytest.raises(OSError, match="folder"):
        replace_file(path, b"data")
    assert (list(tmp_path.iterdir()), list(path.iterdir())) == ([path], [path / "file"])
