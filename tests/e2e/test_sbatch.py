"""Batch scripts on a whole cluster: a job that requeues itself, has steps on two nodes and submits the next job."""

import json
from pathlib import Path

import pytest
from tests.e2e.test_up import Person, soon

_SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=chain --nodes=2 --gpus-per-node=2 --ntasks-per-node=2 --output=%x-%j.out
set -euo pipefail
if [ -z "${SLURM_RESTART_COUNT:-}" ]; then
  echo "first start"
  scontrol requeue "$SLURM_JOB_ID"
  sleep 600
fi
srun -l bash -c 'echo node $SLURM_NODEID of $SLURM_NNODES, GPUs $CUDA_VISIBLE_DEVICES'
export SBATCH_JOB_NAME=next SBATCH_GPUS=1
next=$(sbatch --parsable --dependency=afterok:$SLURM_JOB_ID --wrap 'echo after the first' 2>/dev/null)
echo "submitted $next"
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="keepers look for processes in /proc")
def test_a_batch_script_requeues_itself_runs_steps_on_two_nodes_and_submits_the_next_job(person: Person) -> None:
    (person.folder / "chain.sbatch").write_text(_SCRIPT)
    with person.up("--nodes", "2x2", "--policy", "fifo") as up:
        soon(lambda: all(node["up"] for node in person.asks("nodes")))
        (person.folder / "token").write_text(
            person.says("token", "create", "bot", "--role", "user", "--tenant", "default")
        )
        server = json.loads((person.folder / "home" / "client.json").read_text())["server"]
        person.env |= {"SHOAL_SERVER": server, "SHOAL_TOKEN_FILE": str(person.folder / "token")}
        passed = "--export=ALL,SHOAL_SERVER,SHOAL_TOKEN_FILE"
        assert person.says("sbatch", passed, "chain.sbatch").startswith("Submitted batch job chain-")
        soon(
            lambda: (
                {row["name"]: row["state"] for row in person.asks("acct")}
                == {"chain": "completed", "next": "completed"}
            )
        )
        lines = (person.folder / "chain-1.out").read_text().splitlines()
        assert lines[0] == "first start"
        assert sorted(lines[1:5]) == [f"{i}: node {i // 2} of 2, GPUs {'0,1' if i < 2 else '2,3'}" for i in range(4)]
        assert lines[5].startswith("submitted next-")
        assert "after the first" in person.says("logs", "next")
        up.terminate()
        assert up.wait(60) == 0


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)
