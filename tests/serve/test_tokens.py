"""The file of tokens: private, durable, without a secret in it."""

import sqlite3
import stat
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
