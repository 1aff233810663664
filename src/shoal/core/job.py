"""A job's specification, as its owner declared it. Only a simulated backend knows a job's true work and speed."""

from shoal.core.batch_limits import BatchLimits
from shoal.core.units import JobId, Seconds, TenantId
from shoal.core.value import Value


class BatchSetting(Value, frozen=True):
    """A batch size in samples over all GPUs, and the number of gradient accumulation steps."""

    size: int
    accumulation: int = 0


ADAPTIVE = BatchSetting(0)
"""Granted instead of a batch size: the job's agent chooses the size, within the job's limits, and may change it."""


class Conditions(Value, frozen=True):
    """Conditions of a job's first start, beside free GPUs.

    ``after`` holds (id of an earlier job, when): ``ok`` once that job has completed, ``notok`` once it has failed or
    was cancelled, ``any`` once it has ended, ``start`` once it has started. ``begin`` is the earliest start. With
    ``hold`` the job waits until its owner releases it. Of the jobs of an ``array`` at most ``most_at_once`` are
    scheduled at a time.
    """

    after: tuple[tuple[JobId, str], ...] = ()
    begin: Seconds | None = None
    hold: bool = False
    array: str | None = None
    most_at_once: int | None = None

    @property
    def wait(self) -> bool:
        """Whether the job must wait; an array without a limit alone does not make it wait."""
        return bool(self.after or self.begin is not None or self.hold or self.most_at_once)


class WarningSignal(Value, frozen=True):
    """Signal sent ``before`` seconds ahead of a job's time limit: to every process of its ranks, or with ``main``
    only to the main process of each rank."""

    number: int
    before: Seconds
    main: bool = False


class Launch(Value, frozen=True):
    """What to execute for a job, once per rank and without a shell; policies do not see it.

    ``ranks`` is ``gpu`` for a process on each GPU or ``node`` for one on each node. After a warning a process has
    ``grace`` seconds to save and exit. Two submissions with the same ``key`` count as one. With ``in_place`` the
    processes are workers that may be added and removed while the others keep training; otherwise a resize stops and
    starts the job. ``cpus`` of each rank and ``memory`` of each node, in bytes, are limits that agents enforce where
    they can; None: no limit. ``retries`` is how often it is tried again after crashes in a row; None leaves it to
    `core.retry`. ``code`` is the digest of the archive that is its working folder, if it was shipped with one. With
    ``terminal`` rank 0 runs on a terminal. ``image`` is the container image and ``account`` the account of an engine,
    such as Slurm, in whose own allocations the job runs. ``notify`` are addresses to send a notice of its end to.
    """

    name: str
    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    workdir: str | None = None
    ranks: str = "gpu"
    grace: Seconds = 10.0
    key: str = ""
    in_place: bool = False
    cpus: int | None = None
    memory: int | None = None
    retries: int | None = None
    signal: WarningSignal | None = None
    code: str | None = None
    terminal: bool = False
    image: str | None = None
    account: str | None = None
    notify: tuple[str, ...] = ()


PREEMPTIBLE = ("yes", "auto", "no")
"""Whether a job may be stopped to make room: always, once it is known to save its work, or never."""

MOST_LOST: Seconds = 600.0
"""Seconds of run that a stop may lose at most, unless the operator sets another limit."""


class JobSpec(Value, frozen=True):
    """A submitted job, as its owner declared it.

    ``work`` is the declared total in effective samples if ``model`` is named, and otherwise in seconds of run time on
    the requested gang; None if the owner does not know. A job is a gang of ``gpus`` GPUs; it is elastic if
    ``min_gpus < max_gpus``. ``speed`` is its declared speed relative to its model's profile, and ``batch_schedule`` the
    declared (progress, batch size) changes; with oracle knowledge both are true. ``ahead`` is what its app will run
    after it, phase by phase: (jobs, GPUs of each, work of each). ``limits`` allow its batch size to be adapted while it
    runs; without them it trains at ``batch_size``. ``adaptation`` is the rule by which the owner's own script changes
    the batch size, ``accordion`` or ``gns``; None if it does not. ``preemptible`` is one of ``PREEMPTIBLE``; a job that
    says ``yes`` saves its work when it is stopped, or does not need it. ``time`` is the longest that one run may last,
    from the moment all ranks are up. Of a tenant's waiting jobs none starts before one of a higher ``priority``. An
    ``exclusive`` job holds all GPUs of its nodes. ``user`` (by default the tenant), ``name`` and ``script`` say which
    earlier runs its length may be predicted from.
    """

    id: JobId
    submitted: Seconds
    gpus: int
    work: float | None
    min_gpus: int
    max_gpus: int
    tenant: TenantId = "default"
    app: str | None = None
    model: str | None = None
    batch_size: int | None = None
    kinds: tuple[str, ...] | None = None
    weight: float = 1.0
    deadline: Seconds | None = None
    speed: float = 1.0
    batch_schedule: tuple[tuple[float, int], ...] = ()
    ahead: tuple[tuple[int, int, float], ...] = ()
    limits: BatchLimits | None = None
    adaptation: str | None = None
    preemptible: str = "yes"
    conditions: Conditions | None = None
    time: Seconds | None = None
    priority: int = 0
    exclusive: bool = False
    user: str = ""
    name: str = ""
    script: str = ""

    @property
    def waits(self) -> bool:
        """Whether the job must wait for conditions before it may start."""
        return self.conditions is not None and self.conditions.wait

    @property
    def elastic(self) -> bool:
        """Whether the job can run on more than one number of GPUs."""
        return self.min_gpus < self.max_gpus
