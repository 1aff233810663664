"""Messages of the HTTP API as typed structures: those of users are here, those of agents re-exported.

Field names are the JSON keys. A new optional field keeps ``PROTOCOL``; any other change is a new protocol. Unknown
fields are refused in messages of users, so that a misspelt option is an error, and ignored in all others.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from shoal.core.decoding import hint
from shoal.wire.agent_messages import *  # noqa: F403  (one import path for every message)
from shoal.wire.agent_messages import SuspensionAbility
from shoal.wire.app_messages import *  # noqa: F403
from shoal.wire.code_messages import *  # noqa: F403
from shoal.wire.fields import (
    Command,
    Count,
    Digest,
    JobName,
    Memory,
    Name,
    Priority,
    Quantity,
    Ranks,
    Resizes,
    Role,
    Span,
    Text,
    Variable,
    Weight,
    Work,
)
from shoal.wire.node_messages import *  # noqa: F403
from shoal.wire.session_messages import *  # noqa: F403

PROTOCOL = 1

TOKEN_DAYS = 400.0
"""Days after which a token expires by default: a cluster that is left alone for a year keeps its tokens."""

DEFAULT_TENANT = "default"
"""Owner of an admin's jobs that name no tenant."""

# ── requests ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Ahead(Struct, forbid_unknown_fields=True, frozen=True):
    """A phase that a job's app will run after it: number of jobs, GPUs of each, work of each."""

    jobs: Count
    gpus: Count
    work: Work


class Dependency(Struct, forbid_unknown_fields=True, frozen=True):
    """An earlier job that a job waits for: until it completed (``ok``), failed or was cancelled (``notok``), ended
    (``any``) or started (``start``). ``job`` is its id, or the name of an earlier job of the same batch."""

    job: JobName
    when: Literal["ok", "any", "notok", "start"] = "ok"


class SignalRequest(Struct, forbid_unknown_fields=True, frozen=True):
    """A signal by name or number, sent this many seconds ``before`` the time limit to all processes of the job, or
    with ``main`` only to the main process of each rank."""

    signal: str | int
    before: Annotated[float, Meta(gt=0, le=1e7)] = 60.0
    main: bool = False


class Submission(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A job as its owner declares it.

    ``command`` is executed without a shell, once per GPU (``ranks: gpu``) or once per node (``ranks: node``). ``work``
    is in samples where ``model`` is named, else in seconds on the requested GPUs. ``deadline`` is in seconds from now.
    ``workdir`` must lie in a folder that the node's agent allows; without one the job runs in a folder of its own. Of
    ``env``, the agent turns ``SHOAL_SUBMIT_PATH`` and ``VIRTUAL_ENV`` or ``CONDA_PREFIX`` into the job's ``PATH``.
    Two submissions with the same ``key`` are one job. With ``max_batch_size`` the batch size may be adapted, from
    ``batch_size`` upwards, with ``min_local_batch`` to ``max_local_batch`` samples on a GPU at once; ``adaptation``
    names the rule by which the job's own script changes it. ``ahead`` lists the phases its app will run after it, for
    policies that ask how much work an app has left. ``resizes``: the job is stopped and started again on other GPUs,
    or, where its script trains with ``Elastic``, workers join and leave while the others train on. ``cpus`` of each
    rank and ``memory`` of each node, in bytes, are limits on nodes that can enforce them. ``retries`` is how often it
    is tried again after crashes in a row; by default 3 times, and not at all if it failed within 30 s.
    ``preemptible``: it may be stopped to make room for others always (``yes``), never (``no``) or once it has saved.

    A job waits for the jobs in ``after``, with ``singleton`` for all earlier jobs of its name and tenant, until
    ``begin`` (Unix seconds), and with ``hold`` until it is released. At most ``most_at_once`` jobs of one ``array`` are
    scheduled at a time. A run that lasts ``time`` seconds is stopped and the job fails; ``signal`` warns it before.
    Of a tenant's waiting jobs none starts before one of a higher ``priority``. An ``exclusive`` job has its nodes for
    itself.
    ``code`` is the digest of an archive sent before, which is unpacked as the working folder in place of ``workdir``.
    With ``terminal`` rank 0 runs on a terminal, which waits a minute for a session and is hung up with it.
    ``image`` and ``account`` are for engines that run each job in allocations of its own; other clusters refuse them.
    ``notify`` are addresses, http, https or ``mail:``, of those the operator allows, that get a notice of its end.
    """

    command: Command
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
    work: Work | None = None
    kinds: Annotated[list[Name], Meta(min_length=1, max_length=64)] | None = None
    weight: Weight = 1.0
    deadline: Span | None = None
    workdir: Text | None = None
    env: dict[Variable, Text] = field(default_factory=dict)
    ranks: Ranks = "gpu"
    resizes: Resizes = "restart"
    grace: Annotated[float, Meta(ge=0, le=3600)] = 10.0
    key: Annotated[str, Meta(max_length=128)] = ""
    ahead: Annotated[list[Ahead], Meta(max_length=200)] | None = None
    cpus: Count | None = None
    memory: Memory | None = None
    retries: Annotated[int, Meta(ge=0, le=1000)] | None = None
    preemptible: Literal["auto", "yes", "no"] = "auto"
    after: Annotated[list[Dependency], Meta(max_length=1000)] | None = None
    singleton: bool = False
    begin: Annotated[float, Meta(ge=0, le=1e11)] | None = None
    hold: bool = False
    array: Name | None = None
    most_at_once: Count | None = None
    time: Annotated[float, Meta(gt=0, le=1e9, extra=hint("must be seconds above 0, at most 1e9"))] | None = None
    signal: SignalRequest | None = None
    priority: Priority = 0
    exclusive: bool = False
    code: Digest | None = None
    terminal: bool = False
    image: Text | None = None
    account: Name | None = None
    notify: Annotated[list[Text], Meta(max_length=4)] = []


class SubmissionBatch(Struct, forbid_unknown_fields=True, frozen=True):
    """Many submissions, made durable together."""

    jobs: Annotated[list[Submission], Meta(min_length=1, max_length=10_000)]


class PriorityMessage(Struct, forbid_unknown_fields=True, frozen=True):
    """A job's new priority among the jobs of its tenant."""

    priority: Priority


class PrioritiseMany(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A new priority of the caller's live jobs with this name, array and state; null stands for any.

    Only an admin may name a ``tenant``; without one an admin's request is about every tenant's jobs.
    """

    priority: Priority
    name: Name | None = None
    array: Name | None = None
    state: Literal["pending", "running"] | None = None
    tenant: Name | None = None


class CancelMany(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Which live jobs to cancel: the caller's jobs with this name, array and state; null stands for any.

    Only an admin may name a ``tenant``; without one an admin's request is about every tenant's jobs.
    """

    name: Name | None = None
    array: Name | None = None
    state: Literal["pending", "running"] | None = None
    tenant: Name | None = None
    force: bool = False


class Submitted(Struct, frozen=True):
    """The ids of the accepted jobs, in the order of the submissions."""

    jobs: list[str]


class Reshape(Struct, forbid_unknown_fields=True, frozen=True):
    """New bounds of a job's gang; the job moves when the policy next grants it GPUs."""

    gpus: Count
    min_gpus: Count | None = None
    max_gpus: Count | None = None


class NewToken(Struct, forbid_unknown_fields=True, frozen=True):
    """A token to create, valid for this many ``days``. A user's is bound to a tenant, an agent's to a node.

    With a ``join`` token an agent adds its node to the cluster and gets a token of its own.

    An admin's jobs that name no tenant belong to the token's tenant, or to ``default``.
    """

    name: Name
    role: Role
    tenant: Name | None = None
    node: Name | None = None
    days: Annotated[float, Meta(gt=0, le=36525)] = TOKEN_DAYS


class QuotaMessage(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A tenant's quota: most waiting jobs, most GPUs at once (null: any number), and GPUs guaranteed to it.

    It replaces the quota before; one without any value removes it.
    """

    tenant: Name
    queued: Quantity | None = None
    gpus: Quantity | None = None
    guaranteed: Quantity = 0


class WhatIf(Struct, forbid_unknown_fields=True, frozen=True):
    """A question about the live state: other policies, more nodes or one more job, simulated over ``seeds`` seeds."""

    policies: Annotated[list[Text], Meta(max_length=8)] = field(default_factory=list)
    add: Text | None = None
    job: Submission | None = None
    seeds: Annotated[int, Meta(ge=1, le=20)] = 5


# ── answers ───────────────────────────────────────────────────────────────────────────────────────────────────────


class ProblemDetails(Struct, frozen=True):
    """Why a request was refused: the field, the value and the way out."""

    error: str
    field: str | None = None
    value: Any = None
    hint: str | None = None


class StartForecast(Struct, frozen=True):
    """When a job is expected to start, or to end: seconds from now, the median and the 10th and 90th percentile."""

    median: float
    low: float
    high: float


class JobRow(Struct, frozen=True, kw_only=True):
    """One job in a list. Times are Unix seconds; ``position`` counts from 1 among the waiting jobs the caller sees."""

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
    """When a waiting job is expected to start."""
    end: StartForecast | None = None
    """When a running job is expected to end if it keeps its GPUs."""
    array: str | None = None
    priority: int = 0
    time: float | None = None
    """Seconds that one run may last."""
    bid: float | None = None
    """Its bid for a GPU at the last decision, divided by the price, where the policy has one."""


class Moment(Struct, frozen=True, omit_defaults=True):
    """One entry of a job's history: Unix seconds, a sentence, and the number of the decision that it comes from."""

    at: float
    what: str
    decision: int | None = None


class JobDetail(Struct, frozen=True, kw_only=True):
    """Everything about one job. ``change`` is what would change its state soonest; empty where nothing is known.

    ``stop`` states the work that a stop of a running job would lose; ``lost_gpu_seconds`` are those whose work stops
    and crashes have lost. ``exit_status`` is that of its last run: 0, or of the rank that failed first, negative for a
    signal.
    """

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
    stop: str = ""
    lost_gpu_seconds: float = 0.0
    exit_status: int | None = None
    length: str = ""
    """How long it is expected to run on, by earlier runs, if it declares no work."""
    engine: list[str] = field(default_factory=list)
    """On an engine such as Slurm: a line on each allocation in which it runs, with the engine's own identifier."""
    links: list[str] = []
    """Its runs in trackers of experiments: addresses by http or https."""


class NodeRow(Struct, frozen=True, kw_only=True):
    """One node: its GPUs, whether it answers, the jobs on it. ``heard``: last contact, Unix seconds.

    ``disk_free`` are the bytes that were free on the disk of its jobs and logs at its last report. ``cpus``, ``memory``
    in bytes and ``no_limits`` (why it enforces no CPU and memory limits; empty if it does) are None until it connects.
    """

    name: str
    kind: str
    gpus: int
    rack: str
    up: bool
    used: int
    jobs: list[str]
    heard: float | None
    disk_free: int | None = None
    drained: str = ""
    """Why the node gets no new runs; empty if it is not drained."""
    cpus: int | None = None
    memory: int | None = None
    no_limits: str | None = None
    suspension: SuspensionAbility | None = None
    """How it suspends runs; None if its agent has not reported it."""
    suspended: list[str] = field(default_factory=list)
    """The jobs that are suspended there."""
    engine: str = ""
    """The engine's note on the node."""
    held: dict[str, int] = field(default_factory=dict)
    """By job in ``jobs``, the GPUs that it holds there."""
    recent_use: float | None = None
    """Fraction of its GPUs' time that jobs held in the last hour, or since the control plane knows."""


class DrainNode(Struct, forbid_unknown_fields=True, frozen=True):
    """The reason for which an operator drains a node."""

    reason: Annotated[str, Meta(min_length=1, max_length=500)]


class TenantRow(Struct, frozen=True, kw_only=True):
    """GPUs a tenant holds now, GPU-seconds it has used, and its fraction of both.

    ``most`` is the most GPUs its quota allows it at once (null: any number), ``guaranteed`` those guaranteed to it.
    """

    tenant: str
    live: int
    held: int
    gpu_seconds: float
    part_now: float
    part_ever: float
    most: int | None = None
    guaranteed: int = 0


class AcctRow(Struct, frozen=True, kw_only=True):
    """A job that ended and the resources it used. Times are Unix seconds, spans are seconds."""

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
    """Summary of the cluster. ``short_of_disk`` says why the control plane refuses new work for lack of disk space."""

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
    short_of_disk: str = ""


class TokenRow(Struct, frozen=True):
    """A token; ``secret`` is set only in the answer that creates it. Times are Unix seconds."""

    name: str
    role: Role
    tenant: str | None
    secret: str | None = None
    node: str | None = None
    created: float | None = None
    expires: float | None = None
