"""Disk space: what counts as full, blocks reserved behind a file's end, holes punched into its middle."""

import errno
import os
import sqlite3
from pathlib import Path

import pytest

from shoal.wire import disk
from shoal.wire.disk import is_full, punch_hole, reserve


def sqlite_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("…")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (OSError(errno.ENOSPC, "…"), True),
        (OSError(errno.EDQUOT, "…"), True),
        (OSError(errno.EIO, "…"), False),
        (sqlite_error(sqlite3.SQLITE_FULL), True),
        (sqlite_error(sqlite3.SQLITE_IOERR), False),
        (ValueError(errno.ENOSPC), False),
    ],
)
def test_only_a_lack_of_space_counts_as_a_full_disk(error: Exception, full: bool) -> None:
    assert is_full(error) == full


def test_reserved_blocks_belong_to_the_file_whose_length_stays(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    if not reserve(path, 2**20):
        pytest.skip("this file system reserves no blocks")
    assert (path.read_bytes(), path.stat().st_blocks * 512 >= 2**20) == (b"content", True)


def test_a_reserve_for_which_there_is_no_room_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    blocks = path.stat().st_blocks
    monkeypatch.setattr("shoal.wire.disk.free_bytes", lambda _: 2**20)
    with pytest.raises(OSError, match="No space"):
        reserve(path, 2**21)
    assert path.stat().st_blocks == blocks


def test_a_reserve_that_fails_halfway_gives_its_blocks_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    allocate = disk._fallocate

    def fail_halfway(file: int, mode: int, offset: int, length: int) -> bool:
        assert allocate(file, mode, offset, length // 2)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shoal.wire.disk._fallocate", fail_halfway)
    with pytest.raises(OSError, match="No space"):
        reserve(path, 2**21)
    assert (path.read_bytes(), path.stat().st_blocks * 512 < 2**20) == (b"content", True)


def test_a_hole_frees_its_blocks_and_leaves_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 2**20)
    file = os.open(path, os.O_RDWR)
    try:
        if not punch_hole(file, 2**18, 2**19):
            pytest.skip("this file system punches no holes")
    finally:
        os.close(file)
    assert path.read_bytes() == b"x" * 2**18 + bytes(2**18) + b"x" * 2**19
    assert path.stat().st_blocks * 512 < 2**20
