"""Rank, job and file paths of this process, read from its environment variables."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.core.batch_limits import BatchLimits
from shoal.core.errors import InputError


@dataclass(frozen=True, slots=True)
class RankEnvironment:
    """One rank of one incarnation of a job.

    ``job`` is None in a process that Shoal did not start. The job writes the file ``progress``; its agent writes the
    file ``lease``. ``work`` is the job's declared work in its own unit. ``batch`` is the granted batch size over all
    ranks, 0 where the job may choose one within ``limits``, None where none was granted.
    """

    job: str | None = None
    incarnation: int = 0
    rank: int = 0
    world: int = 1
    local_rank: int = 0
    nodes: int = 1
    kind: str = "gpu"
    folder: Path | None = None
    progress: Path | None = None
    lease: Path | None = None
    work: float | None = None
    batch: int | None = None
    limits: BatchLimits | None = None

    @property
    def managed(self) -> bool:
        """Whether Shoal started this process."""
        return self.job is not None


def read_rank_environment(environ: Mapping[str, str] | None = None) -> RankEnvironment:
    """The rank that these variables describe; raises ``InputError`` naming a variable that cannot be read.

    A task that ``srun`` started has Slurm's variables instead of ``RANK`` and its like.
    """
    given = os.environ if environ is None else environ
    in_step = "RANK" not in given and "SLURM_STEP_ID" in given
    names = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID") if in_step else ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    rank = RankEnvironment(
        rank=_integer(given, names[0], 0), world=_integer(given, names[1], 1), local_rank=_integer(given, names[2], 0)
    )
    job = given.get("SHOAL_JOB")
    if not job:
        return rank
    work, batch = given.get("SHOAL_WORK"), given.get("SHOAL_BATCH")
    return replace(
        rank,
        job=job,
        incarnation=_integer(given, "SHOAL_INCARNATION", 1),
        nodes=_integer(given, "SHOAL_NODES", 1),
        kind=given.get("SHOAL_KIND", "gpu"),
        folder=_path(given, "SHOAL_DIR"),
        progress=_path(given, "SHOAL_PROGRESS"),
        lease=_path(given, "SHOAL_LEASE"),
        work=float(work) if work else None,
        batch=None if not batch else 0 if batch == "adaptive" else _integer(given, "SHOAL_BATCH", 0),
        limits=_limits(given.get("SHOAL_LIMITS")),
    )


def _limits(text: str | None) -> BatchLimits | None:
    if not text:
        return None
    try:
        initial, most, least_local, most_local = map(int, text.split())
    except ValueError:
        raise InputError("SHOAL_LIMITS", text, "must be four numbers: INITIAL MOST LEAST_LOCAL MOST_LOCAL") from None
    return BatchLimits(initial, most, least_local, most_local)


def _integer(given: Mapping[str, str], name: str, otherwise: int) -> int:
    text = given.get(name) or str(otherwise)
    try:
        return int(text)
    except ValueError:
        raise InputError(name, text, "must be a whole number; the scheduler or torchrun sets it") from None


def _path(given: Mapping[str, str], name: str) -> Path | None:
    return Path(given[name]) if given.get(name) else None
