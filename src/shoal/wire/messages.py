"""The messages of the HTTP API, as typed structures: what is not one of these is refused before anybody sees it.

Field names are the JSON keys. A new optional field keeps ``PROTOCOL``; anything else is a new one. Unknown fields are
refused in what people write (a misspelt option must not pass silently) and ignored in what machines say (a newer
agent may say more).
"""

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct, field

from shoal.core.goodput import GoodputReport
from shoal.core.job import BatchLimits, BatchSetting

PROTOCOL = 1

Count: TypeAlias = Annotated[int, Meta(ge=1, le=100_000)]
Natural: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
Positive: TypeAlias = Annotated[float, Meta(gt=0)]
Text: TypeAlias = Annotated[str, Meta(pattern=r"^[^\x00]*\Z", max_length=4096)]
Name: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]{0,63}\Z", max_length=64)]
JobName: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]{0,79}\Z", max_length=80)]

Role: TypeAlias = Literal["admin", "user", "agent"]
Ranks: TypeAlias = Literal["gpu", "node"]
Resizes: TypeAlias = Literal["restart", "in_place"]

# ── what people send ──────────────────────────────────────────────────────────────────────────────────────────────


class Ahead(Struct, forbid_unknown_fields=True, frozen=True):
    """A phase that a job's app means to run after it: so many jobs, of so many GPUs and so much work each."""

    jobs: Count
    gpus: Count
    work: Positive


class Submission(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A job, as its owner writes it down.

    ``command`` is executed as it stands, without a shell, once per GPU (``ranks: gpu``) or once per node
    (``ranks: node``). ``work`` is in samples where ``model`` is named, else in seconds on the requested GPUs.
    ``deadline`` is in seconds from now. ``workdir`` must lie in a folder the node's agent was told to allow; without
    one the job runs in a folder of its own. ``key`` makes a repeated submission harmless: the same key, the same job.
    With ``max_batch_size`` the batch size may be adapted, from ``batch_size`` upwards, with ``min_local_batch`` to
    ``max_local_batch`` samples on a GPU at once; ``adaptation`` says by which rule the job's own script changes it.
    ``ahead`` are the phases its app will run after it, for policies that ask how much an app has left. ``resizes`` says
    how it is brought to other GPUs: it is stopped and started again, or, where its script trains with ``Elastic``, its
    ranks come and go while the others train on.
    """

    command: Annotated[list[Text], Meta(min_length=1, max_length=1024)]
    name: Name = "job"
    gpus: Count = 1
    min_gpus: Count | None = None
    max_gpus: Count | None = None
    tenant: Name | None = None
    app: Name | None = None
    model: Name | None = None
    batch_size: Count | None = None
    max_batch_size: Annotated[int, Meta(ge=1, le=10_000_000)] | None = None
    min_local_batch: Count | None = None
    max_local_batch: Count | None = None
    adaptation: Literal["accordion", "gns"] | None = None
    work: Positive | None = None
    kinds: Annotated[list[Name], Meta(min_length=1, max_length=64)] | None = None
    weight: Annotated[float, Meta(gt=0, le=1e6)] = 1.0
    deadline: Positive | None = None
    workdir: Text | None = None
    env: dict[Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z", max_length=256)], Text] = field(
        default_factory=dict
    )
    ranks: Ranks = "gpu"
    resizes: Resizes = "restart"
    grace: Annotated[float, Meta(ge=0, le=3600)] = 10.0
    key: Annotated[str, Meta(max_length=128)] = ""
    ahead: Annotated[list[Ahead], Meta(max_length=1000)] | None = None


class SubmissionBatch(Struct, forbid_unknown_fields=True, frozen=True):
    """Many submissions, made durable together."""

    jobs: Annotated[list[Submission], Meta(min_length=1, max_length=10_000)]


class Submitted(Struct, frozen=True):
    """The identifiers the jobs got, in the order they came."""

    jobs: list[str]


class Reshape(Struct, forbid_unknown_fields=True, frozen=True):
    """Another gang for a job: it moves when the policy next seats it."""

    gpus: Count
    min_gpus: Count | None = None
    max_gpus: Count | None = None


class AppBidMessage(Struct, forbid_unknown_fields=True, frozen=True):
    """What an app says GPUs are worth to it, while it has these jobs.

    ``rows`` are GPUs held for good, ascending, and the seconds until the app would be done with them: falling, and no
    faster than the GPUs grow. They are of the kind that its offer names.
    """

    jobs: Annotated[list[JobName], Meta(min_length=1, max_length=10_000)]
    rows: Annotated[list[tuple[Count, Annotated[float, Meta(gt=0, le=1e12)]]], Meta(min_length=1, max_length=4096)]


class NewToken(Struct, forbid_unknown_fields=True, frozen=True):
    """A token to be made. A user's is bound to a tenant, an agent's to a node if one is named.

    An admin's jobs that name no tenant belong to the token's, or to ``default``.
    """

    name: Name
    role: Role
    tenant: Name | None = None
    node: Name | None = None


class WhatIf(Struct, forbid_unknown_fields=True, frozen=True):
    """A question about the live state: other policies, more machines, one more job; over this many seeds."""

    policies: Annotated[list[Text], Meta(max_length=8)] = field(default_factory=list)
    add: Text | None = None
    job: Submission | None = None
    seeds: Annotated[int, Meta(ge=1, le=20)] = 5


# ── what people are told ──────────────────────────────────────────────────────────────────────────────────────────


class ProblemDetails(Struct, frozen=True):
    """Why a request was refused: the field, the value and the way out."""

    error: str
    field: str | None = None
    value: Any = None
    hint: str | None = None


class StartForecast(Struct, frozen=True):
    """When a waiting job is expected to start: seconds from now, the median and the 10th and 90th percentile."""

    median: float
    low: float
    high: float


class JobRow(Struct, frozen=True, kw_only=True):
    """One job in a list. Times are Unix seconds; ``position`` counts from 1 among the waiting jobs one may see."""

    id: str
    name: str
    tenant: str
    state: str
    gpus_held: int
    gpus_wanted: int
    submitted: float
    started: float | None
    ended: float | None
    done: float
    work: float | None
    kind: str | None
    nodes: list[str]
    reason: str
    position: int | None = None
    start: StartForecast | None = None


class Moment(Struct, frozen=True):
    """One entry of a job's story: when (Unix seconds), what happened, in words."""

    at: float
    what: str


class JobDetail(Struct, frozen=True, kw_only=True):
    """Everything about one job. ``change`` says what would change its fortune, where something would."""

    job: JobRow
    command: list[str]
    workdir: str | None
    ranks: str
    grace: float
    incarnation: int
    restarts: int
    crashes: int
    gpu_seconds: float
    rate: float
    decision: str
    decided: float
    change: str
    story: list[Moment]


class WorkLeft(Struct, frozen=True):
    """What is left of an app's job as the cluster sees it: the part of its work, and the seconds that takes.

    ``seconds`` are by number of GPUs from ``least`` on, up to the most it can use; none where it can use none.
    """

    id: str
    part: float
    least: int
    seconds: list[float]


class KindOffer(Struct, frozen=True):
    """GPUs of a kind that are nobody's, or will not be at the end of the next lease (Unix seconds; None: at once).

    ``machines`` are how many GPUs a machine has, and how many such machines there are.
    """

    kind: str
    gpus: int
    machines: list[tuple[int, int]]
    until: float | None


class AppOffer(Struct, frozen=True, kw_only=True):
    """How an app stands before the next auction, if the cluster holds any.

    ``rho`` is its finish-time fairness as the arbiter sees it; ``kind`` the one in whose GPUs it is to bid, of which it
    could hold ``most`` at once; ``said`` whether what it last said of itself counts now.
    """

    app: str
    auctioned: bool
    rho: float | None = None
    kind: str | None = None
    most: int = 0
    said: bool = False
    jobs: list[WorkLeft] = field(default_factory=list)
    kinds: list[KindOffer] = field(default_factory=list)


class NodeRow(Struct, frozen=True, kw_only=True):
    """One node: what it has, whether it answers, what runs there."""

    name: str
    kind: str
    gpus: int
    rack: str
    up: bool
    used: int
    jobs: list[str]
    heard: float | None


class TenantRow(Struct, frozen=True, kw_only=True):
    """What a tenant holds now, has had (GPU-seconds), and its part of both."""

    tenant: str
    live: int
    held: int
    gpu_seconds: float
    part_now: float
    part_ever: float


class AcctRow(Struct, frozen=True, kw_only=True):
    """A job that ended: what it took. Times are Unix seconds, spans are seconds."""

    id: str
    name: str
    tenant: str
    state: str
    gpus: int
    submitted: float
    started: float | None
    ended: float
    waited: float
    gpu_seconds: float
    restarts: int
    cause: str


class ClusterRow(Struct, frozen=True, kw_only=True):
    """The cluster in one look."""

    version: str
    protocol: int
    policy: str
    cluster: str
    now: float
    up_gpus: int
    used_gpus: int
    running: int
    waiting: int
    ended: int
    decisions: int


class TokenRow(Struct, frozen=True):
    """A token that exists; its secret is told once, when it is made."""

    name: str
    role: Role
    tenant: str | None
    secret: str | None = None
    node: str | None = None


class LogPart(Struct, frozen=True):
    """A piece of a rank's log, from byte ``offset`` to byte ``next``; how long the log is, and whether it may grow."""

    job: str
    incarnation: int
    rank: int
    offset: int
    size: int
    text: str
    live: bool
    next: int


# ── what agents and the control plane say to each other ───────────────────────────────────────────────────────────


class Hello(Struct, frozen=True):
    """An agent introduces itself. ``boot`` is new each time it starts: nothing of an older one lives on."""

    protocol: int
    node: Name
    boot: Annotated[str, Meta(max_length=64)]
    kind: Name
    gpus: Annotated[int, Meta(ge=1, le=255)]
    address: Annotated[str, Meta(max_length=255)]


class RankExit(Struct, frozen=True):
    """A rank that ended: its exit status, negative for a signal, and whether it had been warned to leave."""

    rank: Natural
    status: int
    warned: bool = False


class SessionReport(Struct, frozen=True, kw_only=True):
    """What the trainer library inside a job tells of its training, all of it optional.

    ``rate`` is progress per second, in the unit of the job's work, at ``batch_size`` samples a step; ``profile`` is
    what it knows of its goodput, where it adapts its batch size itself. ``generation`` is the latest order of workers
    in whose group a step was trained, where the job is resized in place.
    """

    rate: Annotated[float, Meta(ge=0, le=1e12)] | None = None
    batch_size: Count | None = None
    loss: float | None = None
    profile: GoodputReport | None = None
    generation: Natural | None = None


class RunReport(Struct, frozen=True, kw_only=True):
    """What an agent has of one incarnation of a job: ranks not started yet, running, or all ended.

    ``cause`` says why it could not even start, or why the agent ended it unasked; it is ``blameless`` when that was
    not the job's fault (its lease ran out), and ``finished`` when every rank left by itself, unwarned, with status 0.
    ``done`` and ``saved`` are what the job wrote of its progress, ``session`` what its trainer library added. With a
    ``roster``, that is the latest it acts on, and ``exits`` may come while others of its ranks go on.
    """

    job: Natural
    incarnation: Natural
    phase: Literal["ready", "running", "ended"]
    port: Natural = 0
    exits: list[RankExit] = field(default_factory=list)
    cause: Annotated[str, Meta(max_length=2000)] = ""
    blameless: bool = False
    finished: bool = False
    done: float | None = None
    saved: float | None = None
    session: SessionReport | None = None
    roster: "Roster | None" = None


class LogAnswer(Struct, frozen=True):
    """A piece of a log file, base64; ``size`` is the file's length, −1 where there is no such file."""

    read: Natural
    size: int
    data: bytes


class AgentReport(Struct, frozen=True, kw_only=True):
    """All that an agent has, and what it was asked to read. ``known`` is the generation of orders it acts on."""

    protocol: int
    node: Name
    boot: Annotated[str, Meta(max_length=64)]
    known: int
    runs: Annotated[list[RunReport], Meta(max_length=4096)]
    logs: Annotated[list[LogAnswer], Meta(max_length=64)] = field(default_factory=list)
    wait: Annotated[float, Meta(ge=0, le=60)] = 0.0


class Roster(Struct, frozen=True, kw_only=True):
    """Who is to train, of the workers that a job resized in place has had since it started from its checkpoint.

    That start was its incarnation ``origin``. ``keeps_store`` is of the run whose node keeps the job's store.
    ``members`` are worker numbers, by rank, from ``generation`` on; 0 where no order has named this run's workers yet.
    """

    origin: int
    keeps_store: bool = False
    generation: int = 0
    members: list[int] = field(default_factory=list)


class RunOrder(Struct, frozen=True, kw_only=True):
    """One incarnation an agent should have: made ready, running, or being stopped.

    ``prepare`` keeps ``gpus`` devices and a rendezvous port and starts nothing; ``go`` starts this node's ranks;
    ``stop`` warns, waits ``grace`` seconds and kills. An incarnation that is not in the orders is to be stopped.
    ``shared_with`` is a job on this node whose devices are to be used as well. ``work``, ``batch`` and ``limits`` are
    for the job to know: how much there is to do, which batch size it was granted, and between what it may adapt it.

    With a ``roster`` the ranks are workers that come and go: they are numbered from ``first_rank``, one that ends takes
    nobody with it, and one that the roster has left out ends by itself. Its store is at ``master`` and ``port``.
    """

    job: int
    incarnation: int
    phase: Literal["prepare", "go", "stop"]
    id: str
    command: list[str]
    env: dict[str, str]
    workdir: str | None
    ranks: Ranks
    grace: float
    gpus: int
    shared_with: int | None
    node_rank: int
    nodes: int
    first_rank: int
    local_ranks: int
    world: int
    master: str
    port: int
    work: float | None = None
    batch: BatchSetting | None = None
    limits: BatchLimits | None = None
    roster: Roster | None = None


class LogRead(Struct, frozen=True):
    """A piece of a log an agent should send with its next report."""

    read: int
    id: str
    incarnation: int
    rank: int
    offset: int
    most: int


class AgentOrders(Struct, frozen=True, kw_only=True):
    """All that an agent should have. Its leases run for ``lease`` seconds from when it asked."""

    protocol: int
    generation: int
    lease: float
    runs: list[RunOrder]
    reads: list[LogRead] = field(default_factory=list)
