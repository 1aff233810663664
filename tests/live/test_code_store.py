"""Archives of shipped code: parts, digests, room, and whose they are."""

import os
import stat
from hashlib import sha256
from pathlib import Path

import pytest
from tests.refusals import refusal

from shoal.live.code_store import LEFT_FREE_BYTES, CodeStore
from shoal.wire.messages import MOST_CODE_BYTES, MOST_PART_BYTES, CodePart, CodeStatus


def nobodys(node: str, job: int, digest: str) -> None:
    """No node has a run with code."""


def digest(data: bytes) -> str:
    return sha256(data).hexdigest()


def send(store: CodeStore, tenant: str, data: bytes) -> str:
    assert store.receive(tenant, digest(data), CodePart(0, len(data), data)).whole
    return digest(data)


def test_an_archive_arrives_in_parts_and_is_read_in_parts(tmp_path: Path) -> None:
    store, data = CodeStore(tmp_path, frozenset, nobodys), b"abcdef"
    name = digest(data)
    assert store.status("ana", name) == CodeStatus(0, False)
    assert store.receive("ana", name, CodePart(0, 6, b"abc")) == CodeStatus(3, False)
    assert store.receive("ana", name, CodePart(0, 6, b"abc")) == CodeStatus(3, False), "a part sent twice counts once"
    absent = f"code: {name!r}: is not on the control plane; send it with `shoal submit --ship`"
    with refusal(absent):
        store.check("ana", name)
    assert store.receive("ana", name, CodePart(3, 6, b"def")) == CodeStatus(6, True)
    store.check("ana", name)
    assert store.read("ana", name, 2) == CodePart(2, 6, b"cdef")
    with refusal(absent):
        store.check("bo", name)
    with refusal(f"code: {name!r}: is no longer on the control plane; submit the job again"):
        store.read("bo", name, 0)


def test_an_archive_with_another_digest_is_thrown_away(tmp_path: Path) -> None:
    store, name = CodeStore(tmp_path, frozenset, nobodys), digest(b"other")
    with refusal(f"digest: {name!r}: the archive that was sent has the digest {digest(b'data')}; send it again"):
        store.receive("ana", name, CodePart(0, 4, b"data"))
    assert store.status("ana", name) == CodeStatus(0, False)


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "g" * 64, "a" * 63])
def test_only_a_digest_names_an_archive(tmp_path: Path, name: str) -> None:
    with refusal(f"digest: {name!r}: must be the SHA-256 of the archive, 64 hexadecimal digits"):
        CodeStore(tmp_path, frozenset, nobodys).status("ana", name)


def test_the_archive_used_least_lately_makes_room_unless_a_live_job_uses_it(tmp_path: Path) -> None:
    used: set[tuple[str, str]] = set()
    store = CodeStore(tmp_path, lambda: used, nobodys, most_bytes=10)
    first, second = send(store, "ana", b"1111"), send(store, "bo", b"2222")
    used.add(("ana", first))
    third = send(store, "ana", b"3333")
    assert [store.status("ana", first).whole, store.status("bo", second).whole] == [True, False]
    used.add(("ana", third))
    with refusal(f"code: {digest(b'4444')!r}: the control plane has no room: live jobs use 0.0 of 0.0 GB"):
        store.receive("bo", digest(b"4444"), CodePart(0, 4, b"4444"))


def test_an_archive_that_is_larger_than_it_says_or_than_may_be_is_refused(tmp_path: Path) -> None:
    store = CodeStore(tmp_path, frozenset, nobodys)
    for piece in (CodePart(0, 3, b"1234"), CodePart(MOST_CODE_BYTES, MOST_CODE_BYTES, b"1")):
        with refusal(f"size: {piece.size}: an archive has at most 100 MB"):
            store.receive("ana", digest(b"1234"), piece)


def test_archives_leave_a_gigabyte_of_the_journals_disk_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.live.code_store.free_bytes", lambda folder: LEFT_FREE_BYTES + 3)
    store = CodeStore(tmp_path / "code", frozenset, nobodys)
    send(store, "ana", b"abc")
    hint = "the control plane's disk has less than 1 GB free; share the folder with the nodes, or submit later"
    with refusal(f"code: {digest(b'abcd')!r}: {hint}"):
        store.receive("ana", digest(b"abcd"), CodePart(0, 4, b"abcd"))
    assert store.status("ana", digest(b"abcd")) == CodeStatus(0, False)


def test_a_whole_archive_stays_whole_and_a_part_of_it_sent_again_says_so(tmp_path: Path) -> None:
    store = CodeStore(tmp_path / "code", frozenset, nobodys)
    name = digest(b"abcdef")
    store.receive("ana", name, CodePart(0, 6, b"abc"))
    assert store.status("ana", name) == CodeStatus(3, False)
    assert store.receive("ana", name, CodePart(4, 6, b"ef")) == CodeStatus(3, False), "a gap is not filled"
    store.receive("ana", name, CodePart(3, 6, b"def"))
    assert store.receive("ana", name, CodePart(0, 6, b"abc")) == CodeStatus(6, True)
    assert store.status("ana", name) == CodeStatus(6, True)
    assert store.read("ana", name, 6) == CodePart(6, 6, b"")
    (file,) = (path for path in (tmp_path / "code").rglob("*") if path.is_file())
    assert (stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(file.parent.stat().st_mode)) == (0o600, 0o700)
    assert file.name == f"{name}.tar.gz"


def test_archives_fill_the_store_to_the_last_byte_and_the_oldest_use_goes_first(tmp_path: Path) -> None:
    store = CodeStore(tmp_path, frozenset, nobodys, most_bytes=12)
    names = [send(store, "ana", bytes(f"{n}{n}{n}{n}", "ascii")) for n in range(3)]
    for at, name in zip((30.0, 10.0, 20.0), names, strict=True):
        (path,) = tmp_path.rglob(f"{name}*")
        os.utime(path, (at, at))
    new = digest(b"wxyz")
    assert store.receive("bo", new, CodePart(0, 4, b"wx")) == CodeStatus(2, False)
    assert [len([*tmp_path.rglob(f"{name}*")]) for name in names] == [1, 0, 1]
    assert store.receive("bo", new, CodePart(2, 4, b"yz")).whole
    assert [len([*tmp_path.rglob(f"{name}*")]) for name in names] == [1, 0, 1], "there is room for its second half"


def test_an_archive_may_be_as_large_as_the_largest(tmp_path: Path) -> None:
    store = CodeStore(tmp_path, frozenset, nobodys)
    assert store.receive("ana", digest(b"x"), CodePart(0, MOST_CODE_BYTES, b"x")) == CodeStatus(1, False)
    with refusal(f"size: {MOST_CODE_BYTES + 1}: an archive has at most 100 MB"):
        store.receive("ana", digest(b"x"), CodePart(MOST_CODE_BYTES, MOST_CODE_BYTES + 1, b"x"))
    large = bytes(MOST_PART_BYTES + 1)
    with refusal(f"size: {len(large)}: an archive has at most 100 MB"):
        store.receive("ana", digest(large), CodePart(0, len(large), large))
