"""Events of suspension in place, which ``core.events`` lists among all events."""

from dataclasses import dataclass
from typing import ClassVar

from shoal.core.units import JobNumber, Seconds


@dataclass(frozen=True, slots=True)
class JobSuspended:
    """Every rank is suspended on its node, in ``seconds``, and holds ``bytes`` of host memory; nothing is lost.

    With a ``cause`` an attempt to resume the run has failed, and the event is urgent: the next decision may try again.
    """

    at: Seconds
    job: JobNumber
    incarnation: int
    done: float
    bytes: int = 0
    seconds: Seconds = 0.0
    cause: str = ""

    @property
    def urgent(self) -> bool:
        """Whether it calls for a decision at once."""
        return bool(self.cause)


@dataclass(frozen=True, slots=True)
class JobResumed:
    """Every rank continues where it was suspended, after ``seconds``, at the expected ``rate``.

    With a ``cause`` it was to be suspended, and that was not possible: it never left its GPUs.
    """

    at: Seconds
    job: JobNumber
    incarnation: int
    rate: float
    done: float
    seconds: Seconds = 0.0
    cause: str = ""
    urgent: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class SuspensionReported:
    """A node's agent reported how it suspends runs (``how``), or why not.

    Suspended runs get at most ``memory`` bytes of host memory, and have at most ``most_gpus`` GPUs.
    """

    at: Seconds
    node: int
    how: str
    memory: int = 0
    most_gpus: int | None = None
    why_not: str = ""
    urgent: ClassVar[bool] = False
