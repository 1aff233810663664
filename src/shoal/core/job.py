"""A job's specification, as its owner declared it. Only a simulated backend knows a job's true work and speed."""

from dataclasses import dataclass

from shoal.core.units import JobId, Seconds, TenantId


@dataclass(frozen=True, slots=True)
class BatchSetting:
    """A batch size in samples over all GPUs, and the number of gradient accumulation steps."""

    size: int
    accumulation: int = 0


ADAPTIVE = BatchSetting(0)
"""Granted instead of a batch size: the job's agent chooses the size, within the job's limits, and may change it."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The limits within which a job's batch size may be adapted, in samples.

    ``initial`` is the total batch the job's learning rate was tuned for, at which a sample counts as one effective
    sample; ``most`` is the largest total batch; a GPU takes from ``least_local`` to ``most_local`` samples in one pass.
    """

    initial: int
    most: int
    least_local: int
    most_local: int


@dataclass(frozen=True, slots=True)
class Launch:
    """What to execute for a job, once per rank and without a shell; policies do not see it.

    ``ranks`` is ``gpu`` for a process on each GPU or ``node`` for one on each node. After a warning a process has
    ``grace`` seconds to save and exit. Two submissions with the same ``key`` count as one. With ``in_place`` the
    processes are workers that may be added and removed while the others keep training; otherwise a resize stops and
    starts the job. ``cpus`` of each rank and ``memory`` of each node, in bytes, are limits that agents enforce where
    they can; None: no limit. ``retries`` is how often it is tried again after crashes in a row; None leaves it to
    `core.retry`. With ``terminal`` rank 0 runs on a terminal.
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
    terminal: bool = False


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A submitted job, as its owner declared it.

    ``work`` is the declared total in effective samples if ``model`` is named, and otherwise in seconds of run time on
    the requested gang; None if the owner does not know. A job is a gang of ``gpus`` GPUs; it is elastic if
    ``min_gpus < max_gpus``. ``speed`` is its declared speed relative to its model's profile, and ``batch_schedule`` the
    declared (progress, batch size) changes; with oracle knowledge both are true. ``ahead`` is what its app will run
    after it, phase by phase: (jobs, GPUs of each, work of each). ``limits`` allow its batch size to be adapted while it
    runs; without them it trains at ``batch_size``. ``adaptation`` is the rule by which the owner's own script changes
    the batch size, ``accordion`` or ``gns``; None if it does not.
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

    @property
    def elastic(self) -> bool:
        """Whether the job can run on more than one number of GPUs."""
        return self.min_gpus < self.max_gpus
