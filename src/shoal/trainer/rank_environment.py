"""Where a rank finds itself, read from its environment; without Shoal, a job of its own that nobody manages."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.core.errors import InputError
from shoal.core.job import BatchLimits


@dataclass(frozen=True, slots=True)
class Place:
    """One rank of one incarnation of a job.

    ``job`` is None where Shoal did not start it. ``progress`` is the file the job writes, ``lease`` the one its agent
    writes. ``work`` is how much there is to do, in whatever unit it was declared. ``batch`` is the batch size the job
    was granted over all ranks, 0 where it may choose between ``limits`` itself, None where nothing was said.
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
        """Whether Shoal started it."""
        return self.job is not None


def read_place(environ: Mapping[str, str] | None = None) -> Place:
    """The place this environment describes; a variable that says nonsense is an ``InputError`` that names it."""
    given = os.environ if environ is None else environ
    rank = Place(
        rank=_integer(given, "RANK", 0),
        world=_integer(given, "WORLD_SIZE", 1),
        local_rank=_integer(given, "LOCAL_RANK", 0),
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
