"""The provider `slurm` on a fake Slurm, and with ``make test-engines`` on a real one: the same table for both."""

import json
import os
import pwd
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.provider.slurm_sites import NODES, SlurmSite, command, fake_site, real_site, stranger, wait_for

from shoal.core.errors import InputError
from shoal.provider.protocol import (
    AgentCall,
    Allocation,
    AllocationState,
    EngineAway,
    EngineRefusal,
    Seen,
    Site,
)
from shoal.provider.slurm import commands
from shoal.provider.slurm.commands import SlurmOptions
from shoal.provider.slurm.provider import SlurmProvider, run_program

SECRET = "the-token-of-this-allocation"

AGENT = """#!/bin/sh
# Stands for Python: writes what an agent is given, then waits; a warning is noted and obeyed after a pause.
exec 2>>"$0.errors"
read -r token <&3
me="$0.$(basename "$5")"
trap 'echo TERM >> "$me.signals"; [ -e "$0.deaf" ] || exit 0' TERM
echo "token=$token devices=$CUDA_VISIBLE_DEVICES user=$(id -u) pid=$$" > "$me.new"
env > "$me.env"; tr '\\0' ' ' < /proc/$$/cmdline > "$me.arguments"
mv "$me.new" "$me.given"
while :; do sleep 0.05; done
"""


@pytest.fixture(scope="module", params=["fake", pytest.param("real", marks=pytest.mark.engines)])
def site(request: pytest.FixtureRequest) -> Iterator[SlurmSite]:
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)  # tenants' users pass through it
        with (real_site if request.param == "real" else fake_site)(Path(name) / "slurm") as made:
            yield made


class Rig:
    """A provider, its agents that are shell scripts, and its clock."""

    def __init__(self, site: SlurmSite, folder: Path, options: SlurmOptions) -> None:
        self.site, self.folder, self.now = site, folder, 0.0
        self.python = folder / "python"
        self.python.write_text(AGENT)
        self.python.chmod(0o755)
        made = SlurmOptions(options.mode, python=str(self.python))
        self.calls: list[list[str]] = []
        self.provider = SlurmProvider.connect(made, folder / "home" / "slurm", run=self.run, clock=lambda: self.now)
        self.provider.survey()

    def run(self, words: object, script: str, seconds: float) -> tuple[int, str, str]:
        self.calls.append(list(words))  # type: ignore[call-overload]
        return run_program(words, script, seconds)  # type: ignore[arg-type]

    def allocation(self, node: str, name: str = "", gpus: int = 2, owner: str | None = None) -> Allocation:
        call = AgentCall(("--node", f"{self.folder}/{name or node}"), lambda: SECRET)
        return Allocation(name or node, node, "v100", gpus, call, owner)

    def one(self, name: str) -> Seen:
        (found,) = (one for one in self.provider.seen() if one.name == name and one.state.open)
        return found

    def state(self, name: str) -> str:
        return max((one for one in self.provider.seen() if one.name == name), key=lambda one: int(one.ref)).state

    def given(self, name: str) -> dict[str, str]:
        """Return what an agent was given, once it runs."""
        file = Path(f"{self.python}.{name}.given")
        wait_for(lambda: self.provider.seen() and file.exists())  # the fake starts waiting jobs when it is called
        return dict(word.split("=", 1) for word in file.read_text().split())

    def signals(self, name: str) -> list[str]:
        file = Path(f"{self.python}.{name}.signals")
        return file.read_text().split() if file.exists() else []


@pytest.fixture
def rig(site: SlurmSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    for name in ("PATH", "SLURM_CONF", "LD_LIBRARY_PATH", "FAKE_SLURM"):
        if name in site.environment:
            monkeypatch.setenv(name, site.environment[name])
    made = Rig(site, tmp_path, SlurmOptions())
    yield made
    for one in made.provider.seen():
        if one.state.open:
            made.provider.close(one.ref, 0.0)
    wait_for(lambda: not any(one.state.open for one in made.provider.seen()))


def test_the_survey_has_every_node_with_its_gpus(rig: Rig) -> None:
    assert rig.provider.survey() == [Site(name, "v100", 2) for name in NODES]
    assert rig.provider.abilities.longest_grace == 2.0
    command(rig.site, "scontrol", "update", "NodeName=n3", "State=DRAIN", "Reason=fan")
    assert rig.provider.survey()[2] == Site("n3", "v100", 2, state="draining", why="fan")
    command(rig.site, "scontrol", "update", "NodeName=n3", "State=RESUME")


def test_an_agent_gets_its_gpus_and_its_token_and_no_one_else_sees_the_token(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_TOKEN", SECRET)
    rig.provider.open(rig.allocation("n1"))
    given = rig.given("n1")
    assert (given["token"], given["devices"]) == (SECRET, "0,1")
    assert "--address 127.0.0.1" in Path(f"{rig.python}.n1.arguments").read_text()
    seen = rig.one("n1")
    assert seen.state == AllocationState.UP
    for shown in ("env", "arguments"):
        assert SECRET not in Path(f"{rig.python}.n1.{shown}").read_text()
    assert SECRET not in command(rig.site, "scontrol", "show", "job", seen.ref)
    assert SECRET not in str(rig.calls)
    assert not list((rig.folder / "home" / "slurm" / "tokens").iterdir())


def test_an_allocation_is_opened_once_by_its_name_and_strangers_jobs_are_not_ours(rig: Rig) -> None:
    stranger_ref = stranger(rig.site, "n2", 1)
    for _ in range(2):
        rig.provider.open(rig.allocation("n1"))
    other = SlurmProvider.connect(rig.provider.options, rig.folder / "other", run=rig.run)
    assert [one.name for one in rig.provider.seen() if one.state.open] == ["n1"]
    assert not other.seen()
    command(rig.site, "scancel", stranger_ref)


def test_one_program_is_run_to_list_all_allocations(rig: Rig) -> None:
    for node in NODES:
        rig.provider.open(rig.allocation(node))
    rig.calls.clear()
    assert len([one for one in rig.provider.seen() if one.state.open]) == len(NODES)
    assert [words[0] for words in rig.calls] == ["squeue"]


def test_an_allocation_on_a_full_node_waits_with_slurms_reason_and_is_withdrawn(rig: Rig) -> None:
    ref = stranger(rig.site, "n1", 2)
    rig.provider.open(rig.allocation("n1"))
    wait_for(lambda: rig.one("n1").why == "Resources")
    assert rig.one("n1").state == AllocationState.WAITING
    rig.provider.close(rig.one("n1").ref, 30.0)
    assert rig.state("n1") == AllocationState.ENDED
    command(rig.site, "scancel", ref)


def test_an_agent_beside_a_stranger_gets_the_other_gpu(rig: Rig) -> None:
    ref = stranger(rig.site, "n1", 1)
    rig.provider.open(rig.allocation("n1", gpus=1))
    assert rig.given("n1")["devices"] == "1"
    command(rig.site, "scancel", ref)


def test_a_closed_allocation_is_warned_once_and_ends_by_itself(rig: Rig) -> None:
    rig.provider.open(rig.allocation("n1"))
    rig.given("n1")
    rig.provider.close(rig.one("n1").ref, 30.0)
    wait_for(lambda: rig.state("n1") == AllocationState.ENDED)
    assert rig.signals("n1") == ["TERM"]
    wait_for(lambda: any(one.cleared and one.status == 0 for one in rig.provider.seen()))


def test_an_agent_that_does_not_end_is_cancelled_after_its_grace_and_not_before(rig: Rig) -> None:
    Path(f"{rig.python}.deaf").touch()
    rig.provider.open(rig.allocation("n1"))
    pid = int(rig.given("n1")["pid"])
    ref = rig.one("n1").ref
    rig.provider.close(ref, 30.0)
    wait_for(lambda: rig.signals("n1"))
    rig.now = 29.0
    rig.provider.close(ref, 30.0)
    assert (rig.signals("n1"), rig.one("n1").state) == (["TERM"], AllocationState.UP)
    rig.now = 31.0
    rig.provider.close(ref, 30.0)
    wait_for(lambda: rig.state("n1") == AllocationState.ENDED and not Path(f"/proc/{pid}").exists())


def test_an_allocation_that_a_stranger_cancels_has_ended_and_can_be_opened_again(rig: Rig) -> None:
    rig.provider.open(rig.allocation("n1"))
    rig.given("n1")
    command(rig.site, "scancel", rig.one("n1").ref)
    wait_for(lambda: rig.state("n1") == AllocationState.ENDED)
    Path(f"{rig.python}.n1.given").unlink()
    rig.provider.open(rig.allocation("n1"))
    assert rig.given("n1")["token"] == SECRET


@pytest.mark.parametrize(
    ("node", "gpus", "why"),
    [("nowhere", 1, "Invalid node name specified"), ("n1", 3, "Requested node configuration is not available")],
)
def test_a_refusal_carries_slurms_reason_and_leaves_no_token(rig: Rig, node: str, gpus: int, why: str) -> None:
    with pytest.raises(EngineRefusal, match=f"^{why}$"):
        rig.provider.open(rig.allocation(node, gpus=gpus))
    assert not list((rig.folder / "home" / "slurm" / "tokens").iterdir())


def test_a_controller_that_is_away_changes_nothing(rig: Rig) -> None:
    rig.provider.open(rig.allocation("n1"))
    pid = int(rig.given("n1")["pid"])
    with rig.site.away():
        for call in (rig.provider.survey, rig.provider.seen, lambda: rig.provider.open(rig.allocation("n2"))):
            with pytest.raises(EngineAway):
                call()
        assert Path(f"/proc/{pid}").exists()
    wait_for(lambda: rig.state("n1") == AllocationState.UP)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs jobs as other users")
def test_native_allocations_run_as_their_owner_whose_token_no_other_user_can_read(
    rig: Rig, tmp_path_factory: pytest.TempPathFactory
) -> None:
    nobody = pwd.getpwnam("nobody")
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        native = Rig(rig.site, Path(name), SlurmOptions("native"))
        assert native.provider.abilities.users
        blocker = stranger(rig.site, "n1", 2)
        native.provider.open(native.allocation("n1", "run-1", gpus=1, owner="nobody"))
        (token,) = (native.folder / "home" / "slurm" / "tokens").glob("*/token")
        assert (token.stat().st_uid, token.stat().st_mode & 0o777) == (nobody.pw_uid, 0o600)
        command(rig.site, "scancel", blocker)
        assert native.given("run-1")["user"] == str(nobody.pw_uid)
        assert not token.exists()
        native.provider.close(native.one("run-1").ref, 5.0)
        wait_for(lambda: native.state("run-1") == AllocationState.ENDED)
    with pytest.raises(EngineRefusal, match="no system user 'no-such-user'"):
        rig.provider.open(rig.allocation("n1", owner="no-such-user"))


def test_native_mode_is_refused_to_a_user_without_the_right_to_submit_for_others(tmp_path: Path) -> None:
    def answer(words: object, script: str, seconds: float) -> tuple[int, str, str]:
        return 0, "KillWait = 30 sec\n", ""

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: 1000)
        with pytest.raises(
            InputError, match=r"\(sbatch --uid\).*which only root may; run the control plane as root, or"
        ):
            SlurmProvider.connect(SlurmOptions("native"), tmp_path / "home" / "slurm", run=answer)


def test_a_controller_that_answers_late_reports_its_limits_with_the_first_survey(tmp_path: Path) -> None:
    away = [True]

    def answer(words: object, script: str, seconds: float) -> tuple[int, str, str]:
        if away:
            return 1, "", "scontrol: error: Unable to contact slurm controller (connect failure)"
        return 0, "KillWait = 30 sec\n", ""

    provider = SlurmProvider.connect(SlurmOptions(), tmp_path, run=answer)
    with pytest.raises(EngineAway):
        provider.survey()
    away.clear()
    provider.survey()
    assert provider.abilities.longest_grace == 30.0


def test_a_machine_without_slurm_gets_an_error_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="Slurm cannot be used here: scontrol cannot be run: No such file"):
        SlurmProvider.connect(SlurmOptions(), tmp_path)


def test_asking_powers_up_as_many_nodes_as_the_gpus_need(tmp_path: Path) -> None:
    calls: list[list[str]] = []

    def answer(words: list[str], script: str, seconds: float) -> tuple[int, str, str]:
        calls.append(words)
        sleeping = "\n".join(f"c{n}|10.0.0.{n}|idle~|gpu:a100:2|none" for n in range(4))
        return 0, sleeping if words[0] == "sinfo" else "SuspendProgram = /usr/sbin/off\n", ""

    provider = SlurmProvider.connect(SlurmOptions(), tmp_path, run=answer)  # type: ignore[arg-type]
    assert provider.abilities.scales
    provider.survey()
    provider.ask({"a100": 3, "v100": 8})
    assert calls[-1] == commands.power_up(["c0", "c1"])
    assert json.dumps(calls).count("POWER_UP") == 1
