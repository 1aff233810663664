"""Journals on disk: never overwritten, readable after a kill, and honest about damage."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.refusals import refusal

from shoal.core.commands import Decided
from shoal.core.errors import InputError, JournalError
from shoal.core.events import EventBatch, JobStarted, JobSubmitted
from shoal.policy.classic.las import Las
from shoal.store import codec
from shoal.store.codec import Record
from shoal.store.journal import JournalFile, MemoryJournal, SqliteJournal, settings_of
from shoal.testing.builders import job, simulate


def some_records(count: int) -> list[Record]:
    """What a run would write: big batches and small ones."""
    records: list[Record] = []
    for i in range(count):
        submitted = [JobSubmitted(float(i), job(f"job-{i}-{n}", float(i)).spec()) for n in range(i % 4)]
        records.append(EventBatch(float(i), (*submitted, JobStarted(float(i), i, 1, 1.0, 0.0))))
        records.append(Decided(i * 7919 % 2**32, float(i + 1), ()))
    return records


def write(path: Path, records: list[Record]) -> list[Record]:
    """A journal file with these records; everything that is in it."""
    journal = SqliteJournal.begin(path, {"policy": "las"})
    for record in records:
        if isinstance(record, EventBatch):
            journal.record_events(record)
        elif isinstance(record, Decided):
            journal.record_decision(record)
    journal.close()
    return [codec.Header({"policy": "las"}), *records]


@dataclass(frozen=True, repr=False)
class Sound:
    """A journal as it should be, and what is in it."""

    path: Path
    records: list[Record]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    path = tmp_path_factory.mktemp("sound") / "journal.db"
    return Sound(path, write(path, some_records(150)))


def test_reading_gives_back_what_was_written(sound: Sound) -> None:
    path, records = sound.path, sound.records
    file = JournalFile(path)
    assert list(file.read()) == records
    assert (file.cut, file.records) == (None, len(records))
    assert [raw[0] for raw in file.raw()] == [codec.HEADER] + [codec.EVENTS, codec.DECISION] * 150


def test_both_kinds_of_journal_write_the_same_bytes(tmp_path: Path) -> None:
    records = some_records(20)
    memory = MemoryJournal.begin({"policy": "las"})
    for record in records:
        if isinstance(record, EventBatch):
            memory.record_events(record)
        elif isinstance(record, Decided):
            memory.record_decision(record)
    write(tmp_path / "journal.db", records)
    with sqlite3.connect(tmp_path / "journal.db") as connection:
        assert [row[0] for row in connection.execute("SELECT body FROM record ORDER BY seq")] == memory.records
    connection.close()


def test_a_closed_journal_is_one_file(sound: Sound) -> None:
    assert [entry.name for entry in sound.path.parent.iterdir()] == ["journal.db"]


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(b"somebody's work")
    with refusal(f"journal: '{path}': exists already; choose another name or remove it"):
        SqliteJournal.begin(path, {})
    assert path.read_bytes() == b"somebody's work"


def test_the_settings_are_in_the_first_record(sound: Sound) -> None:
    assert settings_of(JournalFile(sound.path).read) == {"policy": "las"}
    assert settings_of(MemoryJournal.begin({"a": 1}).read) == {"a": 1}
    with pytest.raises(JournalError, match="header"):
        settings_of(MemoryJournal().read)


NOT_JOURNALS = {
    "an empty file": b"",
    "a text file": b"job_id,submit\n1,0\n" * 400,
    "zeros": bytes(8192),
    "only the first bytes of SQLite": b"SQLite format 3\0",
}


@pytest.mark.parametrize("content", NOT_JOURNALS.values(), ids=NOT_JOURNALS.keys())
def test_a_file_that_is_no_journal_is_refused_as_such(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(content)
    with pytest.raises(JournalError, match="not a Shoal journal"):
        list(JournalFile(path).read())


def test_another_database_is_refused_as_no_journal(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE person (name TEXT)")
    connection.close()
    with pytest.raises(JournalError, match="not a Shoal journal"):
        list(JournalFile(tmp_path / "other.db").read())


@pytest.mark.parametrize("name", ["nowhere.db", "."])
def test_a_missing_file_is_an_input_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="no such file"):
        list(JournalFile(tmp_path / name).read())


def test_a_file_that_is_missing_is_refused_with_the_command_that_writes_one(tmp_path: Path) -> None:
    path = tmp_path / "nowhere.db"
    with refusal(f"journal: '{path}': no such file; `shoal simulate --out DIR` writes one"):
        list(JournalFile(path).read())
    with refusal(f"journal: '{tmp_path}': no such file, but a folder; name the journal.sqlite in it"):
        list(JournalFile(tmp_path).read())


def test_a_journal_without_records_is_refused_as_empty(tmp_path: Path) -> None:
    SqliteJournal.begin(tmp_path / "a.db", {}).close()
    with sqlite3.connect(tmp_path / "a.db") as connection:
        connection.execute("DELETE FROM record")
        connection.execute("PRAGMA user_version=0")
    connection.close()
    with pytest.raises(JournalError, match=r"damaged from the start \(empty\)$"):
        list(JournalFile(tmp_path / "a.db").read())


def test_a_journal_that_begins_with_events_has_no_settings() -> None:
    with pytest.raises(JournalError, match=r"^a journal must begin with its header$"):
        settings_of(MemoryJournal([codec.pack_events(EventBatch(0.0, ()))]).read)


def test_the_last_200_verdicts_of_a_job_are_read_in_order(tmp_path: Path) -> None:
    journal = SqliteJournal.begin(tmp_path / "a.db", {})
    for n in range(205):
        journal.record_verdict(float(n), n % 3 and 7, f"verdict {n}")
        journal.record_verdict(float(n), 7, f"verdict {n}")
    journal.close()
    told = JournalFile(tmp_path / "a.db").verdicts(7)
    assert (len(told), told[-1]) == (200, (204.0, "verdict 204"))
    assert told == sorted(told)


def test_a_thousand_records_are_committed_together(tmp_path: Path) -> None:
    journal = SqliteJournal.begin(tmp_path / "a.db", {})
    for n in range(999):
        journal.record_decision(Decided(n, 0.0, ()))
    assert len(list(JournalFile(tmp_path / "a.db").read())) == 1, "the header alone"
    journal.record_decision(Decided(999, 0.0, ()))
    assert len(list(JournalFile(tmp_path / "a.db").read())) == 1001
    journal.close()


def test_after_a_switch_of_files_bytes_count_from_zero(tmp_path: Path) -> None:
    journal = SqliteJournal.begin(tmp_path / "a.db", {})
    write(tmp_path / "b.db", some_records(3))
    assert journal.bytes == len(codec.pack_header({}))

    def replace() -> None:
        (tmp_path / "b.db").replace(tmp_path / "a.db")

    assert journal.switch_files(replace, 7)
    assert (journal.records, journal.bytes) == (7, 0)
    journal.close()
    assert len(list(JournalFile(tmp_path / "a.db").read())) == 7


def assert_honest(path: Path, records: list[Record]) -> int:
    """Reading gives a prefix of the truth and says so, or refuses the file; the number of records read."""
    file = JournalFile(path)
    read: list[Record] = []
    try:
        read.extend(file.read())
    except (JournalError, InputError):
        return 0
    assert read == records[: len(read)]
    assert file.records == len(read)
    assert len(read) == len(records) or file.cut is not None, f"{len(records) - len(read)} records were lost in silence"
    return len(read)


def test_a_file_cut_short_gives_the_records_before_the_cut(sound: Sound, tmp_path: Path) -> None:
    path, records = sound.path, sound.records
    whole = path.read_bytes()
    cut = tmp_path / "cut.db"
    counts = set()
    for length in [*range(0, len(whole), 997), *range(0, len(whole), 4096), len(whole) - 1]:
        cut.write_bytes(whole[:length])
        counts.add(assert_honest(cut, records))
    assert len(counts) > 2, "some of these must be readable up to the cut"


near_the_front = st.integers(0, 4096 + 200)
anywhere = st.integers(0, 2**20)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(flips=st.lists(st.tuples(near_the_front | anywhere, st.integers(1, 255)), min_size=1, max_size=3))
def test_flipped_bytes_never_pass_for_the_truth(sound: Sound, tmp_path: Path, flips: list[tuple[int, int]]) -> None:
    path, records = sound.path, sound.records
    damaged = bytearray(path.read_bytes())
    for at, mask in flips:
        damaged[at % len(damaged)] ^= mask
    for left_over in tmp_path.iterdir():
        left_over.unlink()
    hurt = tmp_path / "hurt.db"
    hurt.write_bytes(damaged)
    assert_honest(hurt, records)


DAMAGE = {
    "a record removed": ("DELETE FROM record WHERE seq = 9", 8, "records 9 to"),
    "a record changed": ("UPDATE record SET body = x'9301' WHERE seq = 5", 4, "checksum of record 5"),
    "a record that is text": ("UPDATE record SET body = 'text' WHERE seq = 5", 4, "checksum of record 5"),
    "the end removed": ("DELETE FROM record WHERE seq > 20", 20, "records 21 to 301 are missing"),
}


@pytest.mark.parametrize(("sql", "left", "said"), DAMAGE.values(), ids=DAMAGE.keys())
def test_damage_is_reported_with_its_position(sound: Sound, tmp_path: Path, sql: str, left: int, said: str) -> None:
    path, records = sound.path, sound.records
    hurt = tmp_path / "hurt.db"
    shutil.copy(path, hurt)
    connection = sqlite3.connect(hurt)
    connection.execute(sql)
    connection.commit()
    connection.close()
    file = JournalFile(hurt)
    assert list(file.read()) == records[:left]
    assert f"cut after record {left}" in (file.cut or "")
    assert said in (file.cut or "")


def test_reading_twice_begins_again(sound: Sound) -> None:
    file = JournalFile(sound.path)
    assert list(file.read()) == list(file.read())


RUN_UNTIL_KILLED = """
import sys
from pathlib import Path
from shoal.core.topology import parse_cluster
from shoal.engine.loop import Loop
from shoal.engine.state import State
from shoal.engine.moves import StopStartPlanner
from shoal.perf.catalog import catalog
from shoal.perf.model import ProfiledModel
from shoal.placement.packed import PackedPlacer
from shoal.policy.classic.las import Las
from shoal.sim.backend import SimulatedBackend
from shoal.sim.truth import RestartCost, Truth
from shoal.store.journal import SqliteJournal
from shoal.testing.builders import job

world = parse_cluster("gpu:1x4")
jobs = [job(f"j{i}", i, 1 + i % 4, 50) for i in range(600)]
truth = Truth.of(jobs, world, catalog())
journal = SqliteJournal.begin(Path(sys.argv[1]), {})

def watch(snapshot, judgement):
    if snapshot.cycle == 700:
        print("in the middle", flush=True)
        sys.stdin.read()

backend = SimulatedBackend(truth, [j.spec() for j in jobs], RestartCost(0.0))
state = State(world, ProfiledModel(world, catalog()))
Loop(backend, state, Las(), PackedPlacer(), StopStartPlanner(), journal, watch).run()
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_run_killed_in_the_middle_leaves_a_readable_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    child = subprocess.Popen(
        [sys.executable, "-c", RUN_UNTIL_KILLED, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"in the middle\n"
        child.kill()
    assert child.returncode == -signal.SIGKILL
    jobs = [job(f"j{i}", float(i), 1 + i % 4, 50) for i in range(600)]
    truth = simulate(Las(), jobs, "gpu:1x4").journal
    file = JournalFile(path)
    read = list(file.read())
    assert 1000 <= len(read) < len(truth.records)
    assert read == list(truth.read())[: len(read)]
