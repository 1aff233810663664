"""A written-down problem as it stands in its JSON file, and what is wrong with it.

The file holds one problem or a list of them. A field that makes no sense is an error that names it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from shoal.core.decoding import NotJson, decode
from shoal.core.errors import InputError, nearest


class WrittenRegime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A regime that a job has before it: so many steps at so many per second, by GPU type."""

    steps: float
    throughput: dict[str, float]


class Theta(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Pollux's seven parameters of a step's time on one GPU type, in seconds and samples (OSDI '21 §3.2).

    Without those between nodes, nodes are as near to each other as GPUs on one.
    """

    alpha_grad: float
    beta_grad: float
    alpha_local: float = 0.0
    beta_local: float = 0.0
    alpha_node: float | None = None
    beta_node: float | None = None
    gamma: float = 1.0


class BatchBounds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Batch sizes in samples: the one a job was tuned for, the most in all, and the least and most on one GPU."""

    initial: int
    most: int
    most_local: int
    least_local: int = 1


class Goodput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How well a job would train: its step times by GPU type, its gradient noise scale in samples, its batch sizes."""

    theta: dict[str, Theta]
    pgns: float
    batch: BatchBounds


class WrittenJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job of a problem: progress per second of its whole gang by GPU type, and what the policies ask for.

    ``unconsolidated`` is the same for a gang spread over several nodes, where that is slower; ``by_gpus`` that of an
    elastic job by type and number of GPUs, from ``min_gpus`` to ``max_gpus``; ``goodput`` that of one whose batch size
    is adapted. ``regimes`` are what a job has before it whose speed will change; ``service`` is GPU-seconds it had.
    """

    id: str
    throughput: dict[str, float] = {}
    unconsolidated: dict[str, float] = {}
    by_gpus: dict[str, dict[int, float]] = {}
    gpus: int = 1
    min_gpus: int | None = None
    max_gpus: int | None = None
    weight: float = 1.0
    steps_left: float | None = None
    steps_done: float = 0.0
    elapsed: float = 0.0
    isolated_elapsed: float = 0.0
    arrived: float = 0.0
    entity: str | None = None
    slo: float | None = None
    service: float = 0.0
    regimes: list[WrittenRegime] = []
    goodput: Goodput | None = None


class Entity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A group of jobs that shares as one: its weight, and whether its jobs share alike or first come, first served."""

    weight: float = 1.0
    policy: Literal["fair", "fifo"] = "fair"


class WrittenPair(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Two jobs on the same GPUs: the throughput of each, by type."""

    jobs: tuple[str, str]
    throughput: dict[str, tuple[float, float]]


class MachineRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """GPUs by machine (``TYPE-0`` is the first of a type), and the ρ an app would have with them."""

    gpus: dict[str, int]
    rho: float


class WrittenBid(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an app bids at auction: its ρ by number of GPUs, or with none (``"0"``) and by machines."""

    app: str
    rho: dict[int, float]
    machines: list[MachineRow] = []


class Span(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is planned ahead: so many rounds of so many seconds."""

    rounds: int
    seconds: float


class WrittenProblem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A problem as it is written down; times are seconds, prices dollars per GPU-hour."""

    cluster: dict[str, int]
    jobs: list[WrittenJob] = []
    prices: dict[str, float] = {}
    entities: dict[str, Entity] = {}
    pairs: list[WrittenPair] = []
    bids: list[WrittenBid] = []
    gpus_per_node: dict[str, int] = {}
    window: Span | None = None
    now: float = 0.0


def read_problems(path: Path) -> list[WrittenProblem]:
    """The problems in a file."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InputError("problem", str(path), f"cannot be read: {error.strerror}") from error
    try:
        if text.lstrip()[:1] == b"[":
            return decode(text, list[WrittenProblem], whole="problem")
        return [decode(text, WrittenProblem, whole="problem")]
    except NotJson as error:
        raise InputError("problem", str(path), f"is not a problem file: {error.hint}") from error


def check(problem: WrittenProblem) -> None:
    """Refuse a problem with a field that makes no sense."""
    if not problem.cluster:
        raise InputError("cluster", problem.cluster, "name at least one GPU type and how many there are")
    for kind, gpus in problem.cluster.items():
        if gpus < 0:
            raise InputError(f"cluster.{kind}", gpus, "must be at least 0")
    seen: set[str] = set()
    for job in problem.jobs:
        if job.id in seen:
            raise InputError("job, id", job.id, "is given twice")
        seen.add(job.id)
        if job.gpus < 1:
            raise InputError(f"job {job.id}, gpus", job.gpus, "must be at least 1")
        if not 0 < job.weight < float("inf"):
            raise InputError(f"job {job.id}, weight", job.weight, "must be above 0")
        for kind, speed in job.throughput.items():
            if kind not in problem.cluster:
                raise InputError(f"job {job.id}, throughput", kind, nearest(kind, problem.cluster))
            if not 0 <= speed < float("inf"):
                raise InputError(f"job {job.id}, throughput.{kind}", speed, "must be a number of at least 0")
        for field in ("steps_done", "elapsed", "service"):
            if not 0 <= getattr(job, field) < float("inf"):
                raise InputError(f"job {job.id}, {field}", getattr(job, field), "must be a number of at least 0")
        _check_unconsolidated(problem, job)
        _check_by_gpus(problem, job)
        _check_regimes(problem, job)
        _check_goodput(problem, job)
    if problem.window is not None:
        _check_window(problem.window)
    for kind, size in problem.gpus_per_node.items():
        if kind not in problem.cluster:
            raise InputError("gpus_per_node", kind, nearest(kind, problem.cluster))
        if size < 1:
            raise InputError(f"gpus_per_node.{kind}", size, "must be at least 1")
    for name, entity in problem.entities.items():
        if not 0 < entity.weight < float("inf"):
            raise InputError(f"entities.{name}.weight", entity.weight, "must be above 0")


def _check_by_gpus(problem: WrittenProblem, job: WrittenJob) -> None:
    for kind, rates in job.by_gpus.items():
        if kind not in problem.cluster:
            raise InputError(f"job {job.id}, by_gpus", kind, nearest(kind, problem.cluster))
        for gpus, speed in rates.items():
            if gpus < 1:
                raise InputError(f"job {job.id}, by_gpus.{kind}", gpus, "must be a number of GPUs, at least 1")
            if not 0 <= speed < float("inf"):
                raise InputError(f"job {job.id}, by_gpus.{kind}.{gpus}", speed, "must be a number of at least 0")
    if job.steps_left is not None and not 0 <= job.steps_left < float("inf"):
        raise InputError(f"job {job.id}, steps_left", job.steps_left, "must be a number of at least 0")
    if not 0 <= job.arrived < float("inf"):
        raise InputError(f"job {job.id}, arrived", job.arrived, "must be a number of seconds, at least 0")


def _check_unconsolidated(problem: WrittenProblem, job: WrittenJob) -> None:
    for kind, speed in job.unconsolidated.items():
        field, together = f"job {job.id}, unconsolidated.{kind}", job.throughput.get(kind, 0.0)
        if kind not in problem.cluster:
            raise InputError(f"job {job.id}, unconsolidated", kind, nearest(kind, problem.cluster))
        if not 0 <= speed <= together:
            raise InputError(field, speed, f"must be from 0 to its throughput on one node, {together:g}")
        if kind not in problem.gpus_per_node:
            raise InputError(field, speed, f"say in gpus_per_node.{kind} how many GPUs a node has")
        if job.gpus == 1:
            raise InputError(field, speed, "one GPU is always on one node; leave it out")


def _check_regimes(problem: WrittenProblem, job: WrittenJob) -> None:
    for number, stage in enumerate(job.regimes):
        where = f"job {job.id}, regimes[{number}]"
        if not 0 < stage.steps < float("inf"):
            raise InputError(f"{where}.steps", stage.steps, "must be a number above 0")
        _check_kinds(problem, f"{where}.throughput", stage.throughput)
        for kind, speed in stage.throughput.items():
            if not 0 <= speed < float("inf"):
                raise InputError(f"{where}.throughput.{kind}", speed, "must be a number of at least 0")
    ahead = sum(stage.steps for stage in job.regimes)
    if job.regimes and job.steps_left not in (None, ahead):
        hint = f"its regimes add up to {ahead:g}; leave it out, or make them agree"
        raise InputError(f"job {job.id}, steps_left", job.steps_left, hint)


def _check_goodput(problem: WrittenProblem, job: WrittenJob) -> None:
    if job.goodput is None:
        return
    where, batch = f"job {job.id}, goodput", job.goodput.batch
    _check_kinds(problem, f"{where}.theta", job.goodput.theta)
    if not job.goodput.theta:
        raise InputError(f"{where}.theta", {}, "must have the parameters of one GPU type at least")
    for kind, theta in job.goodput.theta.items():
        for name in theta.__struct_fields__:
            value = getattr(theta, name)
            if value is not None and not 0 <= value < float("inf"):
                raise InputError(f"{where}.theta.{kind}.{name}", value, "must be a number of at least 0")
        if not theta.alpha_grad + theta.beta_grad > 0:
            raise InputError(f"{where}.theta.{kind}", theta.beta_grad, "a step must take some time: set beta_grad")
        if not 1 <= theta.gamma <= 10:
            raise InputError(f"{where}.theta.{kind}.gamma", theta.gamma, "must be from 1 to 10")
    if not 0 <= job.goodput.pgns < float("inf"):
        raise InputError(f"{where}.pgns", job.goodput.pgns, "must be a number of samples, at least 0")
    if not 1 <= batch.initial <= batch.most:
        raise InputError(f"{where}.batch.initial", batch.initial, f"must be from 1 to the most, {batch.most}")
    if not 1 <= batch.least_local <= batch.most_local:
        raise InputError(f"{where}.batch.most_local", batch.most_local, f"must be {max(batch.least_local, 1)} or more")
    if job.throughput or job.by_gpus:
        raise InputError(where, "given", "goes without throughput and by_gpus: leave them out")


def _check_kinds(problem: WrittenProblem, field: str, given: Mapping[str, object]) -> None:
    for kind in given:
        if kind not in problem.cluster:
            raise InputError(field, kind, nearest(kind, problem.cluster))


def _check_window(window: Span) -> None:
    if not 1 <= window.rounds <= 1000:
        raise InputError("window.rounds", window.rounds, "must be from 1 to 1000")
    if not 1 <= window.seconds < float("inf"):
        raise InputError("window.seconds", window.seconds, "must be a number of seconds, at least 1")
