"""What a person asks for: the job's specification, as declared. What is true of it is the backend's secret."""

from dataclasses import dataclass

from shoal.core.units import JobId, Seconds, TenantId


@dataclass(frozen=True, slots=True)
class BatchSetting:
    """A batch size in samples over all GPUs, and how many accumulation steps it is reached in."""

    size: int
    accumulation: int = 0


ADAPTIVE = BatchSetting(0)
"""Granted instead of a batch size: the job's agent chooses one, within the job's limits, and may change it."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Between what an owner lets the batch size of a job be adapted, in samples.

    ``initial`` is the total batch the job's learning rate was tuned for, and at which a sample counts as one effective
    sample; ``most`` is the largest total batch; a GPU takes from ``least_local`` to ``most_local`` samples in one pass.
    """

    initial: int
    most: int
    least_local: int
    most_local: int


@dataclass(frozen=True, slots=True)
class Launch:
    """What to execute for a job, once per rank and without a shell; no policy sees it.

    ``ranks`` is ``gpu`` for a process on each GPU or ``node`` for one on each node. A process that is warned has
    ``grace`` seconds to save and leave. Two submissions with the same ``key`` are one. With ``in_place`` its processes
    are workers that may come and go while the others train on; without, it is resized by stopping and starting it.
    """

    name: str
    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    workdir: str | None = None
    ranks: str = "gpu"
    grace: Seconds = 10.0
    key: str = ""
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A submitted job, as its owner declared it.

    ``work`` is the declared total in effective samples when ``model`` is named, and otherwise in seconds of run time
    on the requested gang; None when the owner does not know. A job is a gang of ``gpus`` GPUs; it is elastic when
    ``min_gpus < max_gpus``. ``speed`` is how fast it claims to be beside its model's profile, and ``batch_schedule``
    the batch sizes it says it will change to at which progress: an oracle declares both truthfully. ``ahead`` is what
    its app means to run after it, phase by phase: how many jobs, of how many GPUs each, with how much work each.
    ``limits`` lets its batch size be adapted while it runs; without them it trains at ``batch_size``. ``adaptation``
    is by which rule its owner's own script changes the batch size, ``accordion`` or ``gns``; None when it does not.
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
