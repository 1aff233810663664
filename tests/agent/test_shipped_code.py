"""Code shipped with a job: packed by the command line, fetched and unpacked by the agent."""

import io
import os
import subprocess
import tarfile
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import pytest
from tests.agent.conftest import order

from shoal.agent import shipped_code
from shoal.agent.workspace import Workspace
from shoal.cli.ship import pack, ship
from shoal.core.errors import InputError
from shoal.wire.client import Client
from shoal.wire.messages import CodePart, CodeStatus, RunOrder


class Server:
    """A control plane that has archives."""

    def __init__(self, data: bytes = b"") -> None:
        self.data, self.posts = data, 0

    def get(self, path: str, into: type) -> Any:
        if into is CodeStatus:
            return CodeStatus(len(self.data), bool(self.data) and sha256(self.data).hexdigest() in path)
        offset = int(path.partition("offset=")[2])
        return CodePart(offset, len(self.data), self.data[offset : offset + 1000])

    def post(self, path: str, body: CodePart, into: type) -> CodeStatus:
        self.posts += 1
        self.data += body.data
        return cast(CodeStatus, self.get(path, CodeStatus))


def packed(folder: Path) -> bytes:
    archive = io.BytesIO()
    pack(folder, archive)
    return archive.getvalue()


def fetch(tmp_path: Path, data: bytes) -> Path:
    workspace = Workspace(tmp_path / "home", "n")
    workspace._make_parents()
    wanted: RunOrder = order("go", ["true"], code=sha256(data).hexdigest())
    shipped_code.fetch_code(cast(Client, Server(data)), wanted, workspace, (os.getuid(), os.getgid()))
    return workspace.job(wanted.id) / "code"


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for name in ("train.py", "run.sh", "lib/a.py", ".venv/bin/python", "__pycache__/a.pyc", "weights.bin"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name * 300)
    (folder / "run.sh").chmod(0o755)
    (folder / "latest").symlink_to("lib/a.py")
    (folder / "data").symlink_to("/etc")
    return folder


def test_a_shipped_folder_arrives_as_it_was_with_its_links_and_without_what_git_ignores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = project(tmp_path)
    plain = fetch(tmp_path / "1", packed(folder))
    assert tree(plain) == {"train.py", "run.sh", "lib/a.py", "weights.bin", "latest"}
    assert "leaves data out: it is a link out of the folder" in capsys.readouterr().err
    assert (os.access(plain / "run.sh", os.X_OK), os.access(plain / "train.py", os.X_OK)) == (True, False)
    assert (plain / "latest").read_text() == "lib/a.py" * 300
    (folder / ".gitignore").write_text("*.bin\n.venv/\n__pycache__/\n")
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    assert tree(fetch(tmp_path / "2", packed(folder))) == {".gitignore", "train.py", "run.sh", "lib/a.py", "latest"}


def test_equal_folders_give_equal_archives_which_are_sent_once(tmp_path: Path) -> None:
    first, second = project(tmp_path / "1"), project(tmp_path / "2")
    os.utime(second / "train.py", (1, 1))
    assert packed(first) == packed(second)
    server = Server()
    digest = ship(cast(Client, server), first, None)
    assert (ship(cast(Client, server), second, None), server.posts) == (digest, 1)


def test_a_folder_that_is_too_large_is_refused_with_its_largest_files(tmp_path: Path) -> None:
    folder = project(tmp_path)
    with (folder / "huge").open("wb") as file:
        file.truncate(200_000_000)
    with pytest.raises(InputError, match=r"has 200 MB, and at most 100 are shipped; the largest are huge \(200 MB\)"):
        packed(folder)


def test_a_job_that_starts_again_finds_its_folder_as_it_left_it(tmp_path: Path) -> None:
    data = packed(project(tmp_path))
    (fetch(tmp_path, data) / "checkpoint").write_text("saved")
    assert (fetch(tmp_path, data) / "checkpoint").read_text() == "saved"


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, link, size
    return made


@pytest.mark.parametrize(
    "bad",
    [
        member("../../escape"),
        member("link", tarfile.SYMTYPE, "/etc/passwd"),
        member("link", tarfile.SYMTYPE, "../../../x"),
        member("hard", tarfile.LNKTYPE, "/etc/passwd"),
        member("device", tarfile.CHRTYPE),
        member("pipe", tarfile.FIFOTYPE),
    ],
    ids=lambda found: f"{found.name} {found.linkname}",
)
def test_an_archive_that_leads_out_of_its_folder_or_has_devices_is_refused_and_leaves_nothing(
    tmp_path: Path, bad: tarfile.TarInfo
) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        archive.addfile(bad)
    with pytest.raises(InputError, match="cannot be unpacked"):
        fetch(tmp_path, out.getvalue())
    assert not (tmp_path / "home" / "jobs" / "job-1" / "code").exists()
    assert not list((tmp_path / "home" / "nodes" / "n" / "staging").iterdir())


def test_an_archive_that_unpacks_to_more_than_code_may_be_is_refused(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive, open("/dev/zero", "rb") as zeros:
        archive.addfile(member("huge", size=101_000_000), zeros)
    with pytest.raises(InputError, match="larger than code may be"):
        fetch(tmp_path, out.getvalue())


def test_what_is_not_what_the_job_was_submitted_with_is_not_unpacked(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "home", "n")
    workspace._make_parents()
    wanted = order("go", ["true"], code="0" * 64)
    with pytest.raises(OSError, match="is not what the job was submitted with"):
        shipped_code.fetch_code(cast(Client, Server(b"other")), wanted, workspace, None)
