"""Checkpoints: whole or not there, checked when read, the last two kept."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.trainer.checkpoint import BackgroundWriter, Checkpoints, read_newest_ahead
from shoal.trainer.file_digest import digest, is_unchanged


def write(checkpoints: Checkpoints, progress: int) -> Path:
    folder = checkpoints.begin(progress)
    (folder / "state").write_bytes(bytes(range(200)))
    return checkpoints.commit(progress, {"step": progress}).path


def newest(checkpoints: Checkpoints) -> int | None:
    return next((found.facts["step"] for found in checkpoints.usable()), None)


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    made = Checkpoints(tmp_path / "checkpoints", "job", "model")
    for progress in (5, 10):
        write(made, progress)
    return made


def test_the_last_two_are_kept_and_the_newest_is_used(checkpoints: Checkpoints) -> None:
    write(checkpoints, 200)
    assert [found.facts["step"] for found in checkpoints.usable()] == [200, 10]
    assert len(list(checkpoints.folder.iterdir())) == 2


def test_one_that_is_being_written_is_not_there_yet(checkpoints: Checkpoints) -> None:
    (checkpoints.begin(20) / "state").write_bytes(b"half")
    assert newest(checkpoints) == 10
    write(checkpoints, 20)
    assert newest(checkpoints) == 20


def test_what_a_failed_checkpoint_left_is_removed_by_the_next(checkpoints: Checkpoints) -> None:
    (checkpoints.begin(20) / "state").write_bytes(b"half, as on a full disk")
    write(checkpoints, 30)
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == [f"{10:015d}", f"{30:015d}"]


def _edit(path: Path, field: str, value: object) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, field: value}))


SPOILS: dict[str, Callable[[Path], object]] = {
    "is cut short": lambda path: (path / "state").write_bytes(bytes(range(199))),
    "has a wrong byte": lambda path: (path / "state").write_bytes(bytes(200)),
    "lacks a file": lambda path: (path / "state").unlink(),
    "lacks its manifest": lambda path: (path / "manifest.json").unlink(),
    "has half a manifest": lambda path: (path / "manifest.json").write_text('{"format": 1, "ow'),
    "has a list for a manifest": lambda path: (path / "manifest.json").write_text("[1]"),
    "is another job's": lambda path: _edit(path, "owner", "other"),
    "is another model's": lambda path: _edit(path, "fits", "other"),
    "has another format": lambda path: _edit(path, "format", 3),
}


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS.keys())
def test_one_that_cannot_be_trusted_is_set_aside_and_the_previous_is_used(
    checkpoints: Checkpoints, spoil: Callable[[Path], object]
) -> None:
    spoil(write(checkpoints, 20))
    assert newest(checkpoints) == 10
    # What comes after is newer than what was set aside, though it is not as far.
    write(checkpoints, 15)
    assert newest(checkpoints) == 15


def test_a_checkpoint_of_an_earlier_version_is_used_if_its_files_are_whole(checkpoints: Checkpoints) -> None:
    for progress, content in ((20, b"whole"), (30, b"spoiled")):
        path = write(checkpoints, progress)
        (path / "state").write_bytes(content)
        _edit(path, "format", 1)
        _edit(path, "files", {"state": hashlib.sha256(b"whole").hexdigest()})
    assert newest(checkpoints) == 20


def test_a_wrong_byte_in_any_part_of_a_large_file_is_found(tmp_path: Path) -> None:
    path = tmp_path / "state"
    content = bytearray(40 * 2**20)
    path.write_bytes(content)
    written = digest(path)
    for at in (0, 16 * 2**20, 40 * 2**20 - 1):
        content[at] = 1
        path.write_bytes(content)
        assert not is_unchanged(path, written)
        content[at] = 0
    path.write_bytes(content)
    assert is_unchanged(path, written)


def test_a_file_that_changed_after_it_was_read_ahead_is_read_again(checkpoints: Checkpoints) -> None:
    path = write(checkpoints, 20)
    read_newest_ahead(checkpoints.folder)
    assert newest(checkpoints) == 20
    (path / "state").write_bytes(bytes(200))
    assert newest(checkpoints) == 10


def test_reading_ahead_where_no_checkpoint_is_does_nothing(tmp_path: Path) -> None:
    read_newest_ahead(tmp_path / "nowhere")
    assert not list(tmp_path.iterdir())


def test_where_nothing_was_saved_nothing_is_resumed(tmp_path: Path) -> None:
    assert newest(Checkpoints(tmp_path / "nowhere", "job", "model")) is None


def test_a_failure_of_the_background_writer_is_logged_and_raises_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise OSError("disk full")

    writer, written = BackgroundWriter(), list[int]()
    writer.start(128, fail)
    writer.settle()
    assert "the checkpoint at 128 samples could not be written" in caplog.text
    writer.start(256, lambda: written.append(256))
    writer.settle()
    assert written == [256]
