"""Messages between node agents and the control plane. Receivers ignore unknown fields: a newer sender may add some."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from shoal.core.batch_limits import BatchLimits
from shoal.core.goodput import GoodputReport
from shoal.core.job import BatchSetting, WarningSignal
from shoal.wire.fields import AllocationName, Boot, Count, Host, JobName, Name, Natural, Ranks
from shoal.wire.session_messages import SessionOrder

MOST_OLD = 256
"""Jobs with old folders that a report may name."""


class SuspensionAbility(Struct, frozen=True, kw_only=True):
    """Whether and how a node suspends runs: ``signals`` where it has no GPU devices, else ``cuda checkpoint``.

    ``why_not`` is the reason why it does not; empty if it does. Suspended runs get at most ``memory`` bytes of host
    memory. A run on more than ``most_gpus`` GPUs is not suspended.
    """

    how: Annotated[str, Meta(max_length=64)] = "signals"
    why_not: Annotated[str, Meta(max_length=500)] = ""
    memory: Natural = 0
    most_gpus: Natural | None = None


class Hello(Struct, frozen=True):
    """First message of an agent. ``boot`` is new at each start of the agent; no run of an earlier boot is alive,
    except those ``kept``: suspended ones, by job and incarnation, that this agent has taken over.

    ``place`` is the same for all starts on one machine in one folder, where only one agent of a name can run.
    ``cpus`` and ``memory``, in bytes, are the machine's; ``no_limits`` says why the agent cannot limit those of runs.
    ``allocation`` names the agent's allocation if that is for one run, in which case ``gpus`` are the allocation's.
    """

    protocol: int
    node: Name
    boot: Boot
    kind: Name
    gpus: Annotated[int, Meta(ge=1, le=255)]
    address: Host
    cpus: Natural | None = None
    memory: Natural | None = None
    no_limits: Annotated[str, Meta(max_length=1000)] = ""
    place: Annotated[str, Meta(max_length=64)] = ""
    suspension: SuspensionAbility | None = None
    kept: Annotated[list[tuple[int, int]], Meta(max_length=10_000)] = field(default_factory=list)
    allocation: AllocationName = ""


class RankExit(Struct, frozen=True):
    """A rank that ended: its exit status, negative for a signal, and whether it had been warned (SIGTERM)."""

    rank: Natural
    status: int
    warned: bool = False


class SessionReport(Struct, frozen=True, kw_only=True):
    """Report of the trainer library inside a job; every field is optional.

    ``rate`` is progress per second, in the unit of the job's work, at ``batch_size`` samples a step. ``profile`` is the
    job's goodput model, where it adapts its batch size itself. ``generation`` is the latest worker roster in whose
    group a step was trained, where the job is resized in place. ``saves``: the job saves its state when it is warned.
    ``gate``: it can be started before its GPUs are free (``RunOrder``). ``links`` are the job's runs in trackers of
    experiments.
    """

    rate: Annotated[float, Meta(ge=0, le=1e12)] | None = None
    batch_size: Count | None = None
    loss: float | None = None
    learning_rate: float | None = None
    profile: GoodputReport | None = None
    generation: Natural | None = None
    saves: bool = False
    gate: bool = False
    links: Annotated[list[Annotated[str, Meta(max_length=2000)]], Meta(max_length=4)] = []


class Roster(Struct, frozen=True, kw_only=True):
    """Which workers of a job that is resized in place train now.

    ``origin`` is the incarnation in which the job last started from its checkpoint. ``keeps_store`` marks the run whose
    node keeps the job's store. ``members`` are worker numbers by rank, valid from ``generation`` on; 0 where no order
    has named this run's workers yet. The store serves only workers that know ``secret``.
    """

    origin: int
    keeps_store: bool = False
    generation: int = 0
    members: list[int] = field(default_factory=list)
    secret: str = ""


class SuspensionReport(Struct, frozen=True, kw_only=True):
    """The result of an order to suspend a run or to resume it, which ``RunOrder.turn`` numbers.

    ``suspended`` is the run's state since then; ``cause`` is why this differs from the state ordered. While suspended
    its processes hold ``bytes`` of host memory. The change took ``seconds``.
    """

    turn: Natural
    suspended: bool = False
    bytes: Natural = 0
    seconds: Annotated[float, Meta(ge=0)] = 0.0
    cause: Annotated[str, Meta(max_length=2000)] = ""


class RunReport(Struct, frozen=True, kw_only=True):
    """State of one incarnation of a job on the agent's node: ranks not started yet, running, or all ended.

    ``cause`` says why it could not start, or why the agent ended it without an order; ``blameless`` marks a cause that
    is not the job's fault (its lease ran out), ``unstarted`` one that kept the ranks from being started. ``finished``:
    every rank left unwarned with status 0. ``done`` and ``saved`` are the progress the job wrote, ``session`` the
    report of its trainer library. ``roster`` is the latest the agent acts on; with one, ``exits`` may arrive while
    other ranks of the run continue.
    """

    job: Natural
    incarnation: Natural
    phase: Literal["ready", "running", "ended"]
    port: Natural = 0
    exits: list[RankExit] = field(default_factory=list)
    cause: Annotated[str, Meta(max_length=2000)] = ""
    blameless: bool = False
    unstarted: bool = False
    finished: bool = False
    done: float | None = None
    saved: float | None = None
    session: SessionReport | None = None
    roster: Roster | None = None
    suspension: SuspensionReport | None = None


class LogAnswer(Struct, frozen=True):
    """Part of a log file, base64; ``size`` is the file's length in bytes, −1 where there is no such file.

    ``data`` is the file's bytes ``begin`` to ``next`` or, if these were cut out, a note that says so.
    """

    read: Natural
    size: int
    data: bytes
    begin: Natural | None = None
    next: Natural | None = None


class LogPart(Struct, frozen=True):
    """Part of a rank's log, bytes ``offset`` to ``next`` of ``size``; ``live``: the log may still grow.

    ``ranks`` is the number of ranks of this start. Where the middle of a log was cut out, ``text`` is a note and
    ``offset`` to ``next`` are the bytes cut.
    """

    job: str
    incarnation: int
    rank: int
    offset: int
    size: int
    text: str
    live: bool
    next: int
    ranks: int = 1


class AgentReport(Struct, frozen=True, kw_only=True):
    """All runs of an agent and the log parts it was asked for.

    ``known`` is the generation of the orders it acts on. ``session`` repeats the answer to the agent's last hello, so
    that no late report of a dead agent counts; it is empty from agents that do not know it. The server may hold the
    answer for ``wait`` seconds. ``disk_free`` are the bytes free on the disk of its home folder. ``old`` are jobs whose
    folders have not changed for as long as ended jobs are kept; the answer says which of them to forget. ``leaving``
    are the seconds in which the agent ends, with all its runs: 0 in its last report.
    """

    protocol: int
    node: Name
    boot: Boot
    known: int
    runs: Annotated[list[RunReport], Meta(max_length=4096)]
    logs: Annotated[list[LogAnswer], Meta(max_length=64)] = field(default_factory=list)
    wait: Annotated[float, Meta(ge=0, le=60)] = 0.0
    disk_free: Natural | None = None
    old: Annotated[list[JobName], Meta(max_length=MOST_OLD)] = field(default_factory=list)
    session: Annotated[str, Meta(max_length=64)] = ""
    leaving: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    allocation: AllocationName = ""


class RunOrder(Struct, frozen=True, kw_only=True):
    """One incarnation an agent should have: prepared, running, or being stopped.

    ``prepare`` reserves ``gpus`` devices and a rendezvous port and starts nothing; ``go`` starts this node's ranks;
    ``stop`` warns, waits ``grace`` seconds and kills. An agent stops an incarnation that the orders do not list.
    ``shared_with`` is a job on this node whose devices this run uses too. ``work``, ``batch`` and ``limits`` are passed
    on to the job: its total work, the batch size granted, and the bounds within which it may adapt it. ``tenant`` is
    the job's owner, as whose system user an agent that runs as root may start the ranks. ``cpus`` of each rank and
    ``memory``, in bytes, of all ranks here are limits. The keeper sends ``signal`` its seconds before the run has
    lasted ``time`` seconds; at the limit the control plane stops the run. ``code`` is
    the digest of the archive that is its working folder, if it was shipped with one. With ``terminal`` rank 0
    runs on a terminal.

    A run with a ``gate`` may be started before its devices are free: its trainer library waits at the gate, before it
    uses a GPU, until the agent opens it. A run that ``yields`` may go on until a run that gets its devices is there.

    With a ``roster`` the ranks are workers that come and go: they are numbered from ``first_rank``, one that ends does
    not end the others, and one that the roster leaves out ends by itself. The store is at ``master`` and ``port``.

    A batch script's job has ``hosts``, address and GPUs of each of its nodes, and a ``secret`` that its nodes share.
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
    tenant: str = ""
    cpus: int | None = None
    memory: int | None = None
    hosts: list[tuple[str, int]] = field(default_factory=list)
    secret: str = ""
    time: float | None = None
    signal: WarningSignal | None = None
    turn: int = 0
    """Number of the last order to suspend the run (odd) or to resume it (even)."""
    code: str | None = None
    terminal: bool = False
    gate: bool = False
    yields: bool = False


class LogRead(Struct, frozen=True):
    """Part of a log that an agent should send with its next report: at most ``most`` bytes from ``offset``."""

    read: int
    id: str
    incarnation: int
    rank: int
    offset: int
    most: int


class AgentOrders(Struct, frozen=True, kw_only=True):
    """All runs an agent should have. Its leases run for ``lease`` seconds from when it sent its request.

    ``session`` is new with each hello; the agent's reports repeat it. Ended jobs are kept for ``keep`` seconds; the
    folders of those to ``forget``, which are not known any more, can be removed.
    """

    protocol: int
    generation: int
    lease: float
    runs: list[RunOrder]
    reads: list[LogRead] = field(default_factory=list)
    session: str = ""
    keep: float | None = None
    forget: list[str] = field(default_factory=list)
    sessions: list[SessionOrder] = field(default_factory=list)
