"""`shoal shadow` reads Slurm's queue, writes it as sacct would, and runs no program that could change anything."""

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.provider.slurm_sites import command, real_site, stranger

from shoal.provider.queue_watch import QueueWatch
from shoal.provider.slurm.shadow import list_queue, read_queue
from shoal.workload.importers.rows import Source
from shoal.workload.importers.sacct import read_history

T = "2026-11-16T16:17"
RECORDED = f"""\
3   |ann |ml    |gpu |COMPLETED |{T}:34 |{T}:34 |{T}:35 |{T}:55 |1:00:00 |1 |cpu=1,node=1 |n3 |gres:gpu:v100:2 |N/A |
5   |bob |(null)|gpu |PENDING   |{T}:34 |{T}:34 |N/A    |NONE   |1:00:00 |1 |cpu=1,mem=1M |  |gres:gpu:v100:2 |N/A |
2   |bob |(null)|gpu |FAILED    |{T}:30 |{T}:30 |{T}:40 |{T}:50 |1:00:00 |2 |cpu=2,node=2 |n[2-3] |N/A |gres:gpu:3 |
4_1 |ann |ml    |gpu |COMPLETED|{T}:20|{T}:20|{T}:40|{T}:50|1:00:00|2|gres/gpu=4,gres/gpu:v100=4|n[1-2]|gres/gpu:2|N/A|
6   |ann |ml    |gpu |COMPLETED |{T}:20 |{T}:20 |{T}:40 |{T}:50 |1:00:00 |1 |cpu=1 |n1 |N/A |N/A |
"""
"""As `squeue` of 22.05 printed it, with times, owners and the fourth job's TRES composed."""


def test_the_queue_is_written_so_that_the_reader_of_sacct_understands_it(tmp_path: Path) -> None:
    calls: list[Sequence[str]] = []

    def answer(words: Sequence[str], script: str, seconds: float) -> tuple[int, str, str]:
        calls.append(words)
        return 0, RECORDED, ""

    watch = QueueWatch(tmp_path / "seen.txt", list_queue("gpu", answer))
    assert [watch.look(), watch.look()] == [4, 4]  # the sixth has no GPU
    again = QueueWatch(tmp_path / "seen.txt", list_queue("gpu", answer))
    again.resume()
    assert again.jobs == watch.jobs
    history = read_history(Source(tmp_path / "seen.txt"))
    found = {one.job.id: one for one in history.jobs}
    assert {name: (one.job.gpus, one.kind, one.job.work, one.job.tenant) for name, one in found.items()} == {
        "3": (2, "v100", 20.0, "ml"),
        "2": (3, None, 10.0, "bob"),
        "4_1": (4, "v100", 10.0, "ml"),
    }
    assert dict(history.left_out) == {"jobs that have not ended": 1}
    assert {words[0] for words in calls} == {"squeue"}


def test_the_shadow_runs_no_program_that_could_change_anything(
    shoal: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # three jobs need no second process
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("squeue", "sbatch", "scancel", "scontrol", "sinfo", "sacct", "sacctmgr", "salloc", "srun"):
        text = RECORDED if name == "squeue" else ""
        (programs / name).write_text(f"#!/bin/sh\necho {name} >> {tmp_path}/ran\ncat <<'END'\n{text}END\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    code, printed, _ = shoal("shadow", "--on", "slurm:partition=gpu", "--hours", "0", "--policy", "las", "--json")
    assert code == 0
    assert json.loads(printed)["jobs"] == 3
    assert (tmp_path / "ran").read_text().split() == ["squeue"]
    code, _, said = shoal("shadow", "--on", "slum")
    assert (code, "did you mean slurm" in said) == (2, True)


@pytest.mark.engines
def test_the_real_queue_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as name, real_site(Path(name) / "slurm", ("n1", "n2")) as site:
        for variable in ("PATH", "SLURM_CONF", "LD_LIBRARY_PATH"):
            monkeypatch.setenv(variable, site.environment[variable])
        ref = stranger(site, "n1", 2)
        command(site, "scancel", ref)
        other = command(site, "sbatch", "--parsable", "--gpus=2", "--output=/dev/null", "--wrap=sleep 60")
        watch = QueueWatch(tmp_path / "seen.txt", list_queue("gpu"))
        assert watch.look() == 2
        assert "gres/gpu:v100=2" in watch.jobs[ref]
        assert "gres/gpu=2" in watch.jobs[other]
    assert not read_queue("")
