"""A rank's log stays within its bound: head and tail are kept, and the log says what was cut out of it."""

import os
import re
import time
from pathlib import Path

import pytest

from shoal.agent.job_logs import LogLimiter, cut_log, read_piece, shrink_earlier
from shoal.agent.workspace import Workspace
from shoal.wire.messages import LogRead

BOUND = 10**6
LINE = b"%09d\n"


def lines(begin: int, end: int) -> bytes:
    return b"".join(LINE % number for number in range(begin, end))


def whole(path: Path, offset: int = 0) -> bytes:
    """The log from an offset to its end, read as an agent reads it for `shoal logs`."""
    text, file = b"", os.open(path, os.O_RDONLY)
    try:
        for _ in range(10_000):
            piece = read_piece(file, offset, 100_000)
            text += piece.data
            if piece.next >= piece.size or piece.next <= offset:
                return text
            offset = piece.next
        raise AssertionError("reading never ends")
    finally:
        os.close(file)


def grow(path: Path, chunks: int, *, bound: int = BOUND, size: int = 20_000) -> None:
    """Append ``chunks`` chunks of lines; the log is cut after each."""
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    for chunk in range(chunks):
        os.write(file, lines(chunk * size, (chunk + 1) * size))
        cut_log(file, bound)
    os.close(file)


@pytest.fixture(params=["holes", "rewritten"])
def holes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param == "rewritten":
        monkeypatch.setattr("shoal.agent.job_logs.punch_hole", lambda *_: False)
    return bool(request.param == "holes")


def test_a_log_beyond_its_bound_keeps_head_and_tail_and_says_how_much_was_cut(tmp_path: Path, holes: bool) -> None:
    path = tmp_path / "1.0.log"
    grow(path, 50)
    assert path.stat().st_blocks * 512 <= 1.1 * BOUND
    text = whole(path)
    head, count, tail = re.fullmatch(rb"(.*?)\n\[shoal: ([\d,]+) bytes cut here\]\n(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    written = lines(0, 50 * 20_000)
    assert written.startswith(head)
    assert written.endswith(tail)
    assert min(len(head), len(tail)) > BOUND // 6
    assert len(head) + int(count.replace(b",", b"")) + len(tail) == len(written)


def test_a_log_within_its_bound_is_left_alone(tmp_path: Path, holes: bool) -> None:
    path = tmp_path / "1.0.log"
    grow(path, 5, size=20_000)
    assert whole(path) == path.read_bytes() == lines(0, 100_000)


def test_a_reader_that_follows_a_log_learns_how_much_it_missed(tmp_path: Path) -> None:
    path = tmp_path / "1.0.log"
    grow(path, 4)
    file = os.open(path, os.O_RDWR | os.O_APPEND)
    read_to = os.fstat(file).st_size
    os.write(file, lines(80_000, 480_000))
    cut_log(file, BOUND)
    os.close(file)
    missed = re.match(rb"\n\[shoal: ([\d,]+) bytes cut here\]\n", whole(path, read_to))
    assert missed is not None
    rest = whole(path, read_to)[len(missed[0]) :]
    assert int(missed[1].replace(b",", b"")) + len(rest) == 4_000_000
    assert lines(80_000, 480_000).endswith(rest)


def test_a_reader_of_a_log_that_was_rewritten_shorter_goes_on_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "1.0.log"
    path.write_bytes(b"short\n")
    file = os.open(path, os.O_RDONLY)
    piece = read_piece(file, 1000, 10)
    os.close(file)
    assert (piece.data, piece.next, piece.size) == (b"", 6, 6)


def test_a_log_piece_names_the_end_of_the_hole_so_that_readers_skip_it(tmp_path: Path) -> None:
    folder = Workspace(tmp_path, "n1")
    os.close(folder.lock())
    grow(folder.logs("job-a") / "1.0.log", 50)
    answer = folder.read_log(LogRead(1, "job-a", 1, 0, 5_000_000, 100))
    assert answer.begin is not None
    assert answer.next is not None
    assert answer.begin < BOUND // 2
    assert answer.next > answer.size - BOUND
    assert answer.data.startswith(b"\n[shoal: ")


def test_logs_of_earlier_incarnations_stay_within_one_bound_and_the_oldest_are_a_note(tmp_path: Path) -> None:
    for incarnation in range(1, 41):
        (tmp_path / f"{incarnation}.0.log").write_bytes(b"x" * 100_000)
    (tmp_path / "3.1.log").write_bytes(b"another rank")
    for _ in range(2):
        shrink_earlier(tmp_path, 40, "0", BOUND)
        used = sum(path.stat().st_blocks * 512 for path in tmp_path.glob("*.0.log"))
        assert used <= BOUND + 40 * 4096 + 102_400
    assert (tmp_path / "39.0.log").stat().st_size == (tmp_path / "40.0.log").stat().st_size == 100_000
    assert (tmp_path / "3.1.log").read_bytes() == b"another rank"
    assert not (tmp_path / "1.0.log").exists()  # a note at first, then nothing


def test_a_log_that_its_job_deletes_is_bounded_too(tmp_path: Path) -> None:
    limiter, path = LogLimiter(BOUND), tmp_path / "1.0.log"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, lines(0, 300_000))
    limiter.watch((1, 1), tmp_path, ["1.0.log"])
    deadline = time.monotonic() + 30
    for part in range(1, 3):
        while os.fstat(file).st_blocks * 512 > 1.1 * BOUND:
            assert time.monotonic() < deadline, "it was never cut"
            time.sleep(0.01)
        path.unlink(missing_ok=True)
        os.write(file, lines(300_000 * part, 300_000 * (part + 1)))
    limiter.forget((1, 1))
    assert os.fstat(file).st_blocks * 512 <= 1.1 * BOUND
    os.close(file)


def test_a_log_is_cut_while_its_rank_writes_and_a_last_time_when_the_run_is_over(tmp_path: Path) -> None:
    limiter, path = LogLimiter(BOUND), tmp_path / "1.0.log"
    limiter.watch((1, 1), tmp_path, ["1.0.log"])
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, lines(0, 300_000))
    deadline = time.monotonic() + 30
    while os.fstat(file).st_blocks * 512 > 1.1 * BOUND:
        assert time.monotonic() < deadline, "it was never cut"
        time.sleep(0.01)
    os.write(file, lines(300_000, 600_000))
    os.close(file)
    limiter.forget((1, 1))
    assert (path.stat().st_size, path.stat().st_blocks * 512 <= 1.1 * BOUND) == (6_000_000, True)
    assert whole(path).count(b"bytes cut here") == 1
