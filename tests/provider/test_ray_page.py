"""The commands of docs/ray.md on a real Ray, as one script; the environments of these tests stand for new ones."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from tests.e2e.site import _free_port
from tests.provider.ray_cluster import ROOT, end_session, require_ray

PAGE = Path(__file__).parents[2] / "docs" / "ray.md"


@pytest.mark.engines
def test_the_commands_of_the_page_lead_from_nothing_to_a_job_that_ran(tmp_path: Path) -> None:
    require_ray()
    (block,) = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    *lines, last = block.strip().splitlines()
    assert len(lines) == 9
    assert all("-m venv" in line and "pip install" in line for line in lines[:2])
    stop = "; ray-venv/bin/ray stop"  # would end every Ray of this machine
    assert last.endswith(stop)
    (tmp_path / "venv").symlink_to(sys.prefix)
    (tmp_path / "ray-venv").symlink_to(ROOT)
    script = "set -ex\n" + "\n".join((*lines[2:], last.removesuffix(stop)))
    script = script.replace("7433", str(_free_port())).replace("6379", str(_free_port()))
    script = script.replace("ray start", "ray start --object-store-memory=80000000 --include-dashboard=false")
    with tempfile.TemporaryDirectory() as name, (tmp_path / "out").open("w") as out:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("SHOAL_", "RAY_", "CUDA_"))}
        started = subprocess.Popen(
            ["bash", "-m", "-c", script],
            cwd=tmp_path,
            env={**kept, "USER": "root", "HOME": str(tmp_path), "SHELL": "/bin/bash", "RAY_TMPDIR": name},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status: int | None = started.wait(120)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            end_session(started.pid)
            with suppress(ProcessLookupError):
                started.send_signal(signal.SIGKILL)
            started.wait()
    said = (tmp_path / "out").read_text()
    assert status == 0, said + (tmp_path / "serve.log").read_text()
    assert re.search(r"^GPU [01] of ", said, re.MULTILINE), said
    assert "completed" in said
