"""Tenants on one machine: who runs as whom, and what one of them can do to another."""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.agent.conftest import Plane, Site, order, until

from shoal.agent.tenant_users import choose_users
from shoal.core.errors import InputError
from shoal.wire.messages import LogRead

root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start jobs of other users")
PYTHON = "/usr/bin/python3"  # the tests' own may lie where other users cannot reach it

OWNER = """
import json, os, pathlib, sys, tempfile, time
own = pathlib.Path(os.environ["SHOAL_DIR"])
kept = [own / "secret", pathlib.Path(tempfile.gettempdir()) / "secret"]
for path in kept:
    path.write_text("mine")
open("/dev/stdout", "a").write("to the log\\n")
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
about = {
    "pid": os.getpid(), "uids": os.getresuid(), "gids": os.getresgid(), "groups": os.getgroups(),
    "modes": [oct(path.stat().st_mode & 0o777) for path in (own, own / "secret")], "nnp": status["NoNewPrivs"].strip(),
    "files": [str(path) for path in kept], "home": os.environ["HOME"], "progress": os.environ["SHOAL_PROGRESS"],
    "lease": json.loads(pathlib.Path(os.environ["SHOAL_LEASE"]).read_text())["stopping"],
}
pathlib.Path(os.environ["SHOAL_PROGRESS"]).write_text("7 7\\n")
print(json.dumps(about), flush=True)
time.sleep(600)
"""

THIEF = """
import json, os, pathlib, sys
pid, *files = sys.argv[1:]
found = {}

def attempt(name, act):
    try:
        act()
        found[name] = "done"
    except OSError as error:
        found[name] = type(error).__name__

for path in files:
    attempt(path, lambda: open(path).read())
    attempt("into " + path, lambda: open(path, "a").close())
    attempt("list " + path, lambda: os.listdir(os.path.dirname(path)))
attempt("signal", lambda: os.kill(int(pid), 0))
attempt("environ", lambda: open(f"/proc/{pid}/environ", "rb").read())
attempt("memory", lambda: open(f"/proc/{pid}/mem", "rb").close())
print(json.dumps(found), flush=True)
"""


@pytest.fixture
def site() -> Iterator[Site]:
    """A site whose home other users can reach, as pytest's own folders are not."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    site = Site(Plane(), folder / "home", uuid4().hex)
    site.plane.open()
    yield site
    for agent in site.agents:
        agent.terminate()
        agent.communicate(timeout=60)
    site.plane.close()
    shutil.rmtree(folder)


def said(site: Site, job: int) -> Any:
    """The last line of a job's log."""
    log = site.plane.read(LogRead(100 * job + len(site.plane.answers), f"job-{job}", 1, 0, 0, 65536)).data
    return json.loads(log.splitlines()[-1])


@root
def test_one_tenant_cannot_read_signal_or_trace_what_is_anothers(site: Site) -> None:
    site.agent("--tenant-users", "2000000000-2000000999")
    first = order("go", [PYTHON, "-S", "-c", OWNER], tenant="ana", grace=0.0)
    site.plane.want(first)
    until(lambda: (run := site.plane.run()) and run.done == 7.0, "the first job has written everything")
    owner = said(site, 1)
    number = owner["uids"][0]
    assert number >= 2_000_000_000
    assert (owner["uids"], owner["gids"], owner["groups"]) == ([number] * 3, [number] * 3, [])
    assert (owner["modes"], owner["nnp"], owner["lease"]) == (["0o700", "0o600"], "1", False)
    log = site.home / "nodes" / "node-a" / "logs" / "job-1" / "1.0.log"
    others = [*owner["files"], owner["progress"], str(log), str(site.home / "tenants.json")]
    arguments = [str(owner["pid"]), *others]
    site.plane.want(first, order("go", [PYTHON, "-S", "-c", THIEF, *arguments], job=2, tenant="bo"))
    assert site.plane.until("ended", 2).finished
    found = said(site, 2)
    assert len(found) == 3 + 3 * len(others)
    assert {name: result for name, result in found.items() if result != "PermissionError"} == {}
    kept = json.loads((site.home / "tenants.json").read_text())
    assert sorted(kept) == ["ana", "bo"]
    assert kept["ana"] == number != kept["bo"]


@root
def test_a_folder_that_the_tenants_user_cannot_enter_is_named_with_the_user(site: Site) -> None:
    closed = site.home.parent / "closed"
    closed.mkdir(mode=0o700)
    site.agent("--tenant-users", "1500-1600", "--root", str(closed))
    site.plane.want(order("go", ["true"], tenant="ana", workdir=str(closed)))
    cause = site.plane.until("ended").cause
    assert cause.endswith(
        f"cannot enter the working directory {str(closed)!r}: Permission denied; it runs as user 1500 of tenant ana"
    )


@root
def test_a_tenant_without_a_user_in_the_operators_file_is_refused(site: Site) -> None:
    users = site.home.parent / "users"
    users.write_text("# tenants\nana: 1501\nbo: nobody  # of the system\n")
    site.agent("--tenant-users", str(users))
    site.plane.want(*(order("go", ["id", "-u"], job=job, tenant=name) for job, name in enumerate(("ana", "cy"), 1)))
    assert site.plane.until("ended", 1).finished
    assert "tenant: 'cy': has no system user on this node" in site.plane.until("ended", 2).cause
    assert said(site, 1) == 1501


@root
def test_users_are_read_from_a_file_and_root_is_none(tmp_path: Path) -> None:
    home = Path(tempfile.gettempdir()) / "home"
    cases = {
        "ana: root": "user: 'root': jobs may not run as root",
        "ana: 0": "jobs may not run as root",
        "ana: no-such-user": "there is no such user on this node",
        "ana nobody": "must be `tenant: user`",
        "ana: 1501\nbo: 1501": "two tenants have the same user",
    }
    for text, line in cases.items():
        (tmp_path / "users").write_text(text)
        with pytest.raises(InputError, match=line):
            choose_users(str(tmp_path / "users"), home)
    for range_ in ("0-10", "20-10", "1000-9999999999"):
        with pytest.raises(InputError, match="must be FIRST-LAST"):
            choose_users(range_, home)
    with pytest.raises(InputError, match="cannot be read"):
        choose_users("1000", home)


@root
def test_made_numbers_are_kept_and_a_full_range_says_so() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        users, _ = choose_users("1500-1501", Path(folder))
        assert users is not None
        assert [users.user(tenant).uid for tenant in ("ana", "bo", "ana")] == [1500, 1501, 1500]
        with pytest.raises(InputError, match="all 2 numbers of users are taken"):
            users.user("cy")
        with pytest.raises(InputError, match="names no tenant"):
            users.user("")
        again, _ = choose_users("1500-1501", Path(folder))
        assert again is not None
        assert again.user("bo").uid == 1501


@root
def test_where_users_cannot_reach_the_home_tenants_share_one_or_the_agent_refuses() -> None:
    with tempfile.TemporaryDirectory() as folder:  # of mode 0700
        home = Path(folder) / "home"
        users, why = choose_users("auto", home)
        assert (users, why) == (None, f"other users cannot pass through {folder}; choose a home such as /var/lib/shoal")
        with pytest.raises(InputError, match=f"cannot pass through {folder}"):
            choose_users("1500-1600", home)
        assert choose_users("off", home) == (None, "--tenant-users is off")


@root
@pytest.mark.parametrize("part", ["executable", "prefix"])
def test_tenants_share_a_user_where_others_cannot_run_the_agents_python(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory() as closed, tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setattr(sys, "executable", "/usr/bin/env")
        monkeypatch.setattr(sys, "prefix", "/usr")
        assert choose_users("auto", Path(folder) / "home")[0] is not None
        monkeypatch.setattr(sys, part, f"{closed}/python/bin")
        users, why = choose_users("auto", Path(folder) / "home")
        assert users is None
        assert f"cannot run its Python, since they cannot pass through {closed};" in why


def test_an_agent_says_once_at_its_start_that_tenants_share_a_user(tmp_path: Path) -> None:
    site = Site(Plane(), tmp_path / "home", uuid4().hex)
    site.plane.open()
    agent = site.agent()
    until(lambda: site.plane.reports, "it reports")
    agent.terminate()
    _, lines = agent.communicate(timeout=60)
    site.plane.close()
    assert lines.count("tenants share a user") == 1
