"""Watches Slurm's own queue and writes its jobs in the form of ``sacct`` output, without changing anything.

The one program that is run is ``squeue``. Slurm keeps ended jobs for ``MinJobAge`` seconds (300 by default), so that a
query every minute sees each.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from shoal.provider.protocol import EngineAway
from shoal.provider.queue_watch import QueueWatch
from shoal.provider.slurm import output
from shoal.provider.slurm.commands import read_slurm_options
from shoal.provider.slurm.provider import Answer, run_program

_FIELDS = (
    "JobArrayID:64|,UserName:64|,Account:64|,Partition:64|,State:24|,SubmitTime:24|,EligibleTime:24|,StartTime:24|,"
    "EndTime:24|,TimeLimit:24|,NumNodes:12|,tres-alloc:255|,NodeList:255|,tres-per-node:255|,tres-per-job:255|"
)
_SECONDS = 20.0
_TRES = re.compile(r"gres/gpu(?::([^=,]+))?=(\d+)")


def list_all_jobs(partition: str) -> list[str]:
    """Return the ``squeue`` that lists the jobs of all users, also those that ended lately."""
    chosen = [f"--partition={partition}"] if partition else []
    return ["squeue", "--noheader", "--array", "--states=all", *chosen, f"--Format={_FIELDS}"]


def read_queue(text: str) -> dict[str, str]:
    """Return by job the line of ``COLUMNS`` that ``sacct`` would print for it; jobs without a GPU are left out."""
    found = {}
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|")]
        if len(parts) < 15:
            continue
        *row, tres, nodes, per_node, per_job = parts[:15]
        count = int(row[-1]) if row[-1].isdigit() else 1
        if gpus := _gpus(tres, per_node, per_job, count):
            row[2] = "" if row[2] == "(null)" else row[2]
            found[row[0]] = "|".join((*row, gpus, nodes))
    return found


def _gpus(tres: str, per_node: str, per_job: str, nodes: int) -> str:
    """Return a job's GPUs as a TRES: those that Slurm counts, or else those that the job asked for."""
    counted = {kind: int(count) for kind, count in _TRES.findall(tres)}
    if counted:
        typed = {kind: count for kind, count in counted.items() if kind} or counted
    else:
        asked, factor = (per_node, nodes) if "gpu" in per_node else (per_job, 1)
        read = output.read_gres(asked.replace("gres:", "").replace("gres/", ""))
        typed = {kind if kind != "gpu" else "": count * factor for kind, count in read.items()}
    return ",".join(f"gres/gpu{':' * bool(kind)}{kind}={count}" for kind, count in typed.items())


def list_queue(
    partition: str, run: Callable[[Sequence[str], str, float], Answer] = run_program
) -> Callable[[Mapping[str, str]], Mapping[str, str]]:
    """Return the function that lists Slurm's jobs for a `QueueWatch`."""

    def rows(_: Mapping[str, str]) -> Mapping[str, str]:
        status, text, said = run(list_all_jobs(partition), "", _SECONDS)
        if status:
            raise EngineAway(output.complaint(said))
        return read_queue(text)

    return rows


def make_watch(options: str, file: Path) -> QueueWatch:
    """Return the watch for ``slurm:key=value,…``."""
    return QueueWatch(file, list_queue(read_slurm_options(options).partition))
