"""The commands of docs/slurm.md on a real Slurm, as one script; the environment of these tests stands for a new one."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.e2e.site import _free_port
from tests.provider.slurm_sites import real_site

PAGE = Path(__file__).parents[2] / "docs" / "slurm.md"


@pytest.mark.engines
def test_the_commands_of_the_page_lead_from_nothing_to_a_job_that_ran(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    lines = block.strip().splitlines()
    assert len(lines) == 10
    assert lines[0].startswith("python3 -m venv")
    assert "pip install" in lines[1]
    (tmp_path / "venv").symlink_to(sys.prefix)
    script = "set -ex\n" + "\n".join(lines[2:]).replace("7433", str(_free_port()))
    with tempfile.TemporaryDirectory() as name, real_site(Path(name) / "slurm", ("n1", "n2")) as site:
        environment = {**site.environment, "USER": "root", "HOME": str(tmp_path), "SHELL": "/bin/bash"}
        done = subprocess.run(
            ["bash", "-m", "-c", script],
            cwd=tmp_path,
            env={key: value for key, value in environment.items() if not key.startswith("SHOAL_")},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        said = done.stdout + done.stderr + (tmp_path / "serve.log").read_text()
        assert done.returncode == 0, said
        assert re.search(r"^GPU [01] of ", done.stdout, re.MULTILINE), said
        assert "completed" in done.stdout, said
    assert not os.path.exists(f"{name}/slurm")
