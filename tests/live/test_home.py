"""The home folder of a control plane and its settings: bounds, privacy, and errors that name the setting."""

import sqlite3
import stat
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.refusals import refusal

from shoal.core.errors import JournalError
from shoal.core.events import EventBatch
from shoal.core.topology import parse_cluster
from shoal.live.home import JOURNAL, Settings, known_cluster, make_home, open_control_plane
from shoal.scenario.scenario import Scenario
from shoal.store.journal import SqliteJournal


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"lease": 0.4}, "lease: 0.4: must lie between 0.5 and 3600 seconds"),
        ({"lease": 3601.0}, "lease: 3601.0: must lie between 0.5 and 3600 seconds"),
        ({"max_grace": -1.0}, "max-grace: -1.0: must lie between 0 and 3600 seconds"),
        ({"max_grace": 3601.0}, "max-grace: 3601.0: must lie between 0 and 3600 seconds"),
    ],
)
def test_settings_out_of_bounds_are_refused_by_name_and_the_bounds_themselves_are_not(
    changed: dict[str, float], sentence: str, tmp_path: Path
) -> None:
    settings = Settings(tmp_path, Scenario(parse_cluster("gpu:1x1"), "fifo"), lease=3600.0, max_grace=3600.0)
    assert replace(settings, lease=0.5, max_grace=0.0).lease == 0.5
    with refusal(sentence):
        replace(settings, **changed)  # type: ignore[arg-type]


def test_a_cluster_has_at_most_20_000_nodes(tmp_path: Path) -> None:
    Settings(tmp_path, Scenario(parse_cluster("gpu:20000x1"), "fifo"))
    too_many = "has 20,001 nodes, and a control plane serves at most 20,000: run several"
    with refusal(f"cluster: 'gpu:20001x1': {too_many}"):
        Settings(tmp_path, Scenario(parse_cluster("gpu:20001x1"), "fifo"))


def test_a_new_home_is_private_and_has_a_lock(tmp_path: Path) -> None:
    make_home(tmp_path / "a" / "home")
    assert stat.S_IMODE((tmp_path / "a" / "home").stat().st_mode) == 0o700
    assert [path.name for path in (tmp_path / "a" / "home").iterdir()] == ["lock"]


def test_a_home_with_a_damaged_journal_is_refused_with_the_command_that_saves_it(tmp_path: Path) -> None:
    settings = Settings(tmp_path / "home", Scenario(parse_cluster("gpu:1x1"), "fifo"))
    with open_control_plane(settings) as plane:
        plane.backend.record().result(20)
    path = tmp_path / "home" / JOURNAL
    with closing(sqlite3.connect(path)) as journal:
        journal.execute("UPDATE record SET crc = crc + 1 WHERE seq = 2")
        journal.commit()
    cut = "cut after record 1: the checksum of record 2 does not match"
    with refusal(f"journal: '{path}': is damaged ({cut}): `shoal journal salvage {path}` saves what is whole"):
        open_control_plane(settings).__enter__()


def test_a_journal_without_its_header_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with closing(SqliteJournal.begin(home / JOURNAL, {"cluster": {}})) as journal:
        journal.record_events(EventBatch(1.0, ()))
    with closing(sqlite3.connect(home / JOURNAL)) as rows:
        rows.execute("DELETE FROM record WHERE seq = 1")
        rows.execute("UPDATE record SET seq = 1")
        rows.execute("PRAGMA user_version = 1")
        rows.commit()
    with refusal("a journal must begin with its header", JournalError):
        known_cluster(home)


def test_a_home_that_cannot_be_made_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    home = tmp_path / "file" / "home"
    with refusal(f"home: '{home}': cannot be written: Not a directory; name a folder this user may write to"):
        make_home(home)
