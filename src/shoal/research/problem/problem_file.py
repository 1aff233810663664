"""Problem files of ``shoal solve``: their fields, how they are read, and the rules between fields.

A file holds one problem or a list of them. The type of a field says which values it may hold; `check` has the other
rules.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from shoal.core.decoding import NotJson, decode, hint
from shoal.core.errors import InputError, nearest

Positive: TypeAlias = Annotated[float, Meta(gt=0)]
NotNegative: TypeAlias = Annotated[float, Meta(ge=0)]
Gpus: TypeAlias = Annotated[int, Meta(ge=1)]
Samples: TypeAlias = Annotated[int, Meta(ge=1)]
ByKind: TypeAlias = dict[str, NotNegative]

_LARGEST_NODE = 255


class ProblemRegime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stretch of training that lies ahead of a job: its steps, and its steps per second by GPU type."""

    steps: Positive
    throughput: ByKind


class Theta(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Pollux's seven parameters of a step's time on one GPU type, in seconds and samples (OSDI '21 §3.2).

    Without ``alpha_node`` a step across nodes takes as long as one on a single node.
    """

    alpha_grad: NotNegative
    beta_grad: NotNegative
    alpha_local: NotNegative = 0.0
    beta_local: NotNegative = 0.0
    alpha_node: NotNegative | None = None
    beta_node: NotNegative | None = None
    gamma: Annotated[float, Meta(ge=1, le=10)] = 1.0


class BatchBounds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Batch sizes in samples: the one a job was tuned for, the most in all, and the least and most on one GPU."""

    initial: Samples
    most: Samples
    most_local: Samples
    least_local: Samples = 1


class Goodput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Training speed of a job with adaptive batch size: step times by GPU type, gradient noise scale, batch sizes."""

    theta: Annotated[
        dict[str, Theta], Meta(min_length=1, extra=hint("must have the parameters of one GPU type at least"))
    ]
    pgns: Annotated[float, Meta(ge=0, extra=hint("must be a number of samples, at least 0"))]
    batch: BatchBounds


class ProblemJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job of a problem; which fields are needed depends on the policy.

    ``throughput`` is progress per second of the whole gang by GPU type, ``unconsolidated`` the same for a gang spread
    over several nodes, where that is slower; ``by_gpus`` is that of an elastic job by type and number of GPUs, from
    ``min_gpus`` to ``max_gpus``; ``goodput`` that of a job with adaptive batch size; ``regimes`` that of a job whose
    speed will change. ``elapsed`` is seconds since ``arrived`` (``now`` − ``arrived`` unless given), ``slo`` seconds
    after ``arrived``, ``service`` GPU-seconds received.
    """

    id: str
    throughput: ByKind = {}
    unconsolidated: ByKind = {}
    by_gpus: dict[str, dict[Gpus, NotNegative]] = {}
    gpus: Gpus = 1
    min_gpus: Gpus | None = None
    max_gpus: Gpus | None = None
    weight: Positive = 1.0
    steps_left: NotNegative | None = None
    steps_done: NotNegative = 0.0
    elapsed: NotNegative | None = None
    isolated_elapsed: NotNegative = 0.0
    arrived: NotNegative = 0.0
    entity: str | None = None
    slo: float | None = None
    service: NotNegative = 0.0
    regimes: list[ProblemRegime] = []
    goodput: Goodput | None = None


class Entity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A group of jobs in a hierarchy: its weight, and how it serves its jobs, fairly or in order of arrival."""

    weight: Positive = 1.0
    policy: Literal["fair", "fifo"] = "fair"


class ProblemPair(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Two jobs on the same GPUs: the throughput of each, by type."""

    jobs: tuple[str, str]
    throughput: dict[str, tuple[NotNegative, NotNegative]]


class MachineRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """GPUs by machine (``TYPE-0`` is the first of a type), and the ρ an app would have with them."""

    gpus: dict[str, Gpus]
    rho: Positive


class ProblemBid(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An app's bid at auction: its ρ by number of GPUs, or with none (``"0"``) and by machines."""

    app: str
    rho: dict[Annotated[int, Meta(ge=0)], Positive]
    machines: list[MachineRow] = []


class ProblemWindow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The window to plan: the number of rounds, and seconds in each."""

    rounds: Annotated[int, Meta(ge=1, le=1000)]
    seconds: Annotated[float, Meta(ge=1)]


class Problem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A problem: times are in seconds, prices in dollars per GPU-hour.

    ``formula`` applies to Gavel's policies: ``paper`` adds up throughput as written and carries shares out without
    loss; ``cluster`` counts as the policy does in a cluster, where every job's progress has its own unit and time goes
    to restarts.
    """

    cluster: Annotated[
        dict[str, Annotated[int, Meta(ge=0)]],
        Meta(min_length=1, extra=hint("name at least one GPU type and how many there are")),
    ]
    jobs: list[ProblemJob] = []
    prices: dict[str, float] = {}
    entities: dict[str, Entity] = {}
    pairs: list[ProblemPair] = []
    bids: list[ProblemBid] = []
    gpus_per_node: dict[str, Gpus] = {}
    window: ProblemWindow | None = None
    formula: Literal["paper", "cluster"] = "paper"
    now: float = 0.0

    def node_sizes(self, kind: str) -> list[int]:
        """GPUs of each node of a type; without ``gpus_per_node`` as many as possible are on one."""
        gpus = self.cluster[kind]
        size = self.gpus_per_node.get(kind, max(min(gpus, _LARGEST_NODE), 1))
        return [size] * (gpus // size) + [gpus % size] * (gpus % size > 0)


def read_problems(path: Path) -> list[Problem]:
    """The problems in a file."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InputError("problem", str(path), f"cannot be read: {error.strerror}") from error
    try:
        if text.lstrip()[:1] == b"[":
            return decode(text, list[Problem], whole="problem")
        return [decode(text, Problem, whole="problem")]
    except NotJson as error:
        raise InputError("problem", str(path), f"is not a problem file: {error.hint}") from error


def check(problem: Problem) -> None:
    """Raise ``InputError`` for fields that contradict each other."""
    _check_kinds(problem, "gpus_per_node", problem.gpus_per_node)
    seen: set[str] = set()
    for job in problem.jobs:
        if job.id in seen:
            raise InputError("job, id", job.id, "is given twice")
        seen.add(job.id)
        _check_kinds(problem, f"job {job.id}, throughput", job.throughput)
        _check_kinds(problem, f"job {job.id}, by_gpus", job.by_gpus)
        _check_unconsolidated(problem, job)
        _check_regimes(problem, job)
        if job.goodput is not None:
            _check_goodput(problem, job, job.goodput)


def _check_kinds(problem: Problem, field: str, given: Iterable[str]) -> None:
    for kind in given:
        if kind not in problem.cluster:
            raise InputError(field, kind, nearest(kind, problem.cluster))


def _check_unconsolidated(problem: Problem, job: ProblemJob) -> None:
    _check_kinds(problem, f"job {job.id}, unconsolidated", job.unconsolidated)
    for kind, speed in job.unconsolidated.items():
        field, together = f"job {job.id}, unconsolidated.{kind}", job.throughput.get(kind, 0.0)
        if speed > together:
            raise InputError(field, speed, f"must be from 0 to its throughput on one node, {together:g}")
        if kind not in problem.gpus_per_node:
            raise InputError(field, speed, f"say in gpus_per_node.{kind} how many GPUs a node has")
        if job.gpus == 1:
            raise InputError(field, speed, "one GPU is always on one node; leave it out")


def _check_regimes(problem: Problem, job: ProblemJob) -> None:
    for number, regime in enumerate(job.regimes):
        _check_kinds(problem, f"job {job.id}, regimes[{number}].throughput", regime.throughput)
    ahead = sum(regime.steps for regime in job.regimes)
    if job.regimes and job.steps_left not in (None, ahead):
        way_out = f"its regimes add up to {ahead:g}; leave it out, or make them agree"
        raise InputError(f"job {job.id}, steps_left", job.steps_left, way_out)


def _check_goodput(problem: Problem, job: ProblemJob, goodput: Goodput) -> None:
    where, batch = f"job {job.id}, goodput", goodput.batch
    _check_kinds(problem, f"{where}.theta", goodput.theta)
    for kind, theta in goodput.theta.items():
        if not theta.alpha_grad + theta.beta_grad > 0:
            raise InputError(f"{where}.theta.{kind}", theta.beta_grad, "a step must take some time: set beta_grad")
    if batch.initial > batch.most:
        raise InputError(f"{where}.batch.initial", batch.initial, f"must be from 1 to the most, {batch.most}")
    if batch.least_local > batch.most_local:
        raise InputError(f"{where}.batch.most_local", batch.most_local, f"must be {batch.least_local} or more")
    if job.throughput or job.by_gpus:
        raise InputError(where, "given", "goes without throughput and by_gpus: leave them out")
