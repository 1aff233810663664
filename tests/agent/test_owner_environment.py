"""The owner's search path and Python environment on a node, and the folder a job may work in."""

import os
from pathlib import Path

import pytest
from tests.agent.conftest import order

from shoal.agent import launch
from shoal.agent.node_state import StartRanks
from shoal.agent.owner_environment import owner_environment
from shoal.agent.workspace import Workspace
from shoal.core.errors import InputError


def folder(path: Path) -> str:
    path.mkdir(parents=True)
    return str(path)


def test_python_is_the_one_of_the_owners_active_environment_which_replaces_the_agents(tmp_path: Path) -> None:
    venv, tools, agents = (folder(tmp_path / name) for name in ("venv/bin", "tools", "agents"))
    env = {"SHOAL_SUBMIT_PATH": f"{tools}:relative:/not/here:{agents}", "VIRTUAL_ENV": str(tmp_path / "venv"), "A": "b"}
    environ = {"PATH": f"{agents}:/bin", "VIRTUAL_ENV": "/agent/venv", "CONDA_PREFIX": "/agent/conda", "HOME": "/h"}
    found, note = owner_environment(env, environ)
    path = ":".join([venv, tools, agents, "/bin"])
    assert (found, note) == ({"PATH": path, "VIRTUAL_ENV": str(tmp_path / "venv"), "A": "b", "HOME": "/h"}, "")


@pytest.mark.parametrize("name", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_an_environment_that_is_not_on_the_node_is_left_out_with_a_note(name: str) -> None:
    found, note = owner_environment({"SHOAL_SUBMIT_PATH": "/bin", name: "/laptop/env"}, {"PATH": "/usr/bin"})
    assert found == {"PATH": "/bin:/usr/bin"}
    assert "/laptop/env" in note
    assert "is not on this node" in note
    assert "/bin:/usr/bin" in note


def test_a_path_that_the_submission_sets_is_the_jobs_and_one_over_http_has_the_agents() -> None:
    environ = {"PATH": "/usr/bin", "VIRTUAL_ENV": "/agent/venv"}
    assert owner_environment({"SHOAL_SUBMIT_PATH": "/bin", "PATH": "/opt"}, environ)[0] == {"PATH": "/opt"}
    assert owner_environment({}, environ) == (environ, "")


def test_a_job_works_in_any_folder_unless_the_agent_has_roots(tmp_path: Path) -> None:
    inside, outside = folder(tmp_path / "root" / "inside"), folder(tmp_path / "outside")
    workspace = Workspace(tmp_path / "home", "n")
    workspace._make_parents()

    def check(workdir: str | None, *roots: Path) -> str:
        return launch.check(order("go", ["/bin/sh"], workdir=workdir), workspace, roots, os.environ)

    assert [check(outside), check(inside, tmp_path / "root")] == [outside, inside]
    assert check(None) == str(tmp_path / "home" / "jobs" / "job-1")
    with pytest.raises(InputError, match=r"outside the folders its agent allows.*--root"):
        check(outside, tmp_path / "root")
    with pytest.raises(InputError, match=r"not a directory on this node.*--ship"):
        check(str(tmp_path / "none"))


def test_a_program_is_looked_for_on_the_owners_path(tmp_path: Path) -> None:
    program = Path(folder(tmp_path / "venv" / "bin")) / "train"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    workspace = Workspace(tmp_path / "home", "n")
    workspace._make_parents()
    wanted = order("go", ["train"], env={"VIRTUAL_ENV": str(tmp_path / "venv")})
    launch.check(wanted, workspace, (), {"PATH": "/bin"})
    with pytest.raises(InputError, match="no such program"):
        launch.check(order("go", ["train"]), workspace, (), {"PATH": "/bin"})


def test_the_note_is_written_to_the_first_log_of_the_node_and_no_other(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "home", "n")
    workspace._make_parents()
    wanted = order("go", ["/bin/sh"], env={"VIRTUAL_ENV": "/laptop/env"}, gpus=2, local_ranks=2)
    launcher = launch.Launcher(workspace, "127.0.0.1", "gpu", "boot")
    made = launcher.keeper_input(StartRanks(wanted, (0, 1), 9), workdir="/", lease=1.0, environ={"PATH": "/bin"})
    notes = [rank["note"] for rank in made["ranks"]]
    assert ("/laptop/env" in notes[0], notes[1]) == (True, "")
    assert "VIRTUAL_ENV" not in made["env"]
