"""The file of tokens: private, durable, without a secret in it."""

import hashlib
import sqlite3
import stat
import time
from contextlib import closing
from pathlib import Path

import pytest

from shoal.core.errors import InputError
from shoal.serve import Tokens
from shoal.wire.messages import NewToken


def test_tokens_outlive_the_process_and_the_file_is_the_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "tokens.sqlite"
    tokens = Tokens.begin(path)
    made = tokens.create(NewToken("ana", "user", "ana"))
    gone = tokens.create(NewToken("bo", "user", "bo"))
    tokens.revoke("bo")
    tokens.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert made.secret is not None
    assert gone.secret is not None
    assert made.secret.encode() not in path.read_bytes()

    again = Tokens.open(path)
    holder = again.holder(made.secret)
    assert holder is not None
    assert (holder.name, holder.role, holder.sees) == ("ana", "user", "ana")
    assert again.holder(gone.secret) is None
    assert again.holder("") is None
    again.close()


def test_a_file_that_the_disk_does_not_let_open_is_not_called_another_file(tmp_path: Path) -> None:
    path = tmp_path / "tokens.sqlite"
    Tokens.begin(path).close()
    (tmp_path / "tokens.sqlite-journal").mkdir()  # as on a disk without inodes: SQLite's second file cannot be made
    (tmp_path / "tokens.sqlite-wal").mkdir()
    with pytest.raises(InputError, match=r"cannot be opened: (unable to open database file|disk I/O error)"):
        Tokens.open(path)


def test_no_file_is_overwritten_and_no_other_file_is_taken_for_one(tmp_path: Path) -> None:
    path = tmp_path / "tokens.sqlite"
    path.write_text("something precious")
    with pytest.raises(InputError, match="exists"):
        Tokens.begin(path)
    with pytest.raises(InputError, match="not a file of tokens"):
        Tokens.open(path)
    with pytest.raises(InputError, match="no such file"):
        Tokens.open(tmp_path / "none")
    other = sqlite3.connect(tmp_path / "other.sqlite")
    other.execute("PRAGMA user_version=7")
    other.close()
    with pytest.raises(InputError, match="version 7"):
        Tokens.open(tmp_path / "other.sqlite")
    assert path.read_text() == "something precious"


def test_a_file_of_the_first_version_is_read_and_its_tokens_get_an_expiry(tmp_path: Path) -> None:
    path = tmp_path / "tokens.sqlite"
    old = sqlite3.connect(path)
    old.execute("CREATE TABLE token (name TEXT PRIMARY KEY, hash BLOB UNIQUE, role TEXT, tenant TEXT, node TEXT)")
    old.execute("INSERT INTO token VALUES ('ana', ?, 'user', 'nlp', NULL)", (hashlib.sha256(b"s").digest(),))
    old.execute("PRAGMA user_version=1")
    old.commit()
    old.close()
    for _ in range(2):
        with closing(Tokens.open(path)) as tokens:
            holder = tokens.holder("s")
            assert holder is not None
            assert (holder.name, holder.tenant, holder.expired) == ("ana", "nlp", False)
            assert holder.expires < time.time() + 401 * 86400


def test_a_token_expires(tmp_path: Path) -> None:
    with closing(Tokens.begin(tmp_path / "tokens.sqlite")) as tokens:
        made = tokens.create(NewToken("ana", "user", "ana", days=1e-9))
        lasting = tokens.create(NewToken("bo", "user", "bo", days=2))
        holders = [tokens.holder(row.secret or "") for row in (made, lasting)]
        assert [holder is not None and holder.expired for holder in holders] == [True, False]
        assert lasting.created is not None
        assert lasting.expires == lasting.created + 2 * 86400


def test_no_token_expires_because_a_start_finds_the_clock_ten_years_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, year, wall = tmp_path / "tokens", 365 * 86400.0, time.time()
    with closing(Tokens.begin(path)) as tokens:
        secret = tokens.create(NewToken("admin", "admin")).secret or ""
    for ahead, seen in ((10 * year, 30.0), (0.0, 30.0), (-10 * year, 30.0), (10 * year, 60.0), (40 * 86400.0, 60.0)):
        monkeypatch.setattr("shoal.serve.tokens.time.time", lambda ahead=ahead: wall + ahead)
        with closing(Tokens.open(path)) as tokens:
            holder = tokens.holder(secret)
            assert holder is not None
            assert not holder.expired
            assert tokens.now() - wall == pytest.approx(seen * 86400, abs=600)
    monkeypatch.setattr("shoal.serve.tokens.time.monotonic", lambda: time.perf_counter() + 2 * year)
    assert tokens.holder(secret).expired, "time that passes while a control plane runs counts"  # type: ignore[union-attr]


def test_lent_tokens_are_in_no_file_replace_each_other_and_can_be_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokens.sqlite"
    with closing(Tokens.begin(path)) as tokens:
        first, second = (tokens.lend("n0", "agent", "n0") for _ in range(2))
        assert tokens.holder(first) is None
        holder = tokens.holder(second)
        assert holder is not None
        assert (holder.name, holder.node, holder.expired) == ("up.n0", "n0", False)
        later = time.monotonic() + holder.expires - tokens.now()
        monkeypatch.setattr(time, "monotonic", lambda: later - 10)
        tokens.renew_lent()
        monkeypatch.setattr(time, "monotonic", lambda: later + 10)
        renewed = tokens.holder(second)
        assert renewed is not None
        assert not renewed.expired
        tokens.revoke("up.n0")
        assert tokens.holder(second) is None
    with closing(Tokens.open(path)) as again:
        assert again.rows() == []
