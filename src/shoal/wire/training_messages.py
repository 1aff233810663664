"""Messages about the training of a job, as its trainer library reports it."""

from msgspec import Struct, field


class TrainingPoint(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Figures of a job's training at one time, in Unix seconds; those that it does not report are null.

    ``rate`` is progress per second in the unit of its work: its goodput, where it adapts its batch size.
    ``throughput`` is in samples per second then. ``noise`` is the gradient noise scale in samples, ``saved`` the time
    at which its last checkpoint was first reported.
    """

    at: float
    done: float | None = None
    rate: float | None = None
    throughput: float | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    noise: float | None = None
    loss: float | None = None
    saved: float | None = None


class TrainingRows(Struct, frozen=True):
    """The figures of a job over time, thinned to a few hundred, since the control plane started."""

    job: str
    points: list[TrainingPoint] = field(default_factory=list)
