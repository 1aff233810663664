"""A job's life in the simulated world: where it stands when a world begins in the middle, and how far it is since."""

from dataclasses import dataclass

from shoal.core.goodput import GoodputReport
from shoal.core.lifecycle import JobState
from shoal.core.retry import NO_CRASHES, Crashes
from shoal.core.topology import Placement
from shoal.core.units import Seconds
from shoal.sim.batch_tuner import SimulatedTuner


@dataclass(frozen=True, slots=True)
class JobStart:
    """Where a job stands at the moment a world begins: as it was left, with ``done`` settled to that moment.

    ``since`` is when it got the seats it holds or, for one that is held back, when it will be released; ``rate`` is
    its speed as last measured. One that was told to stop holds no seats any more. With a ``report`` its agent chooses
    its batch size, knowing what it reported.
    """

    state: JobState
    done: float = 0.0
    batch_size: int | None = None
    incarnation: int = 0
    placement: Placement | None = None
    partner: int | None = None
    since: Seconds = 0.0
    rate: float = 0.0
    report: GoodputReport | None = None


@dataclass(slots=True)
class JobRun:
    """How far a job is, and, while it holds seats, how fast it goes since when.

    A job that was ever granted an adaptive batch has a ``tuner``; it has its way while the job ``adapts``. ``noise``
    is the true noise scale that the present rate of such a job rests on, ``report`` what its agent had said before the
    world began.
    """

    done: float = 0.0
    batch_size: int | None = None
    script_at: int = 0
    incarnation: int = 0
    began: Seconds = 0.0
    saved: float = 0.0
    since: Seconds = 0.0
    rate: float = 0.0
    stamp: int = 0
    placement: Placement | None = None
    partner: int | None = None
    crashes: Crashes = NO_CRASHES
    finished: bool = False
    resumes: bool = False
    marks_at: int = 0
    tuner: SimulatedTuner | None = None
    adapts: bool = False
    noise: float = 0.0
    report: GoodputReport | None = None

    @classmethod
    def of(cls, standing: JobStart, now: Seconds) -> "JobRun":
        """The life of a job that stands so now."""
        return cls(
            done=standing.done,
            batch_size=standing.batch_size,
            incarnation=standing.incarnation,
            began=standing.since,
            saved=standing.done,
            since=now,
            rate=standing.rate,
            placement=standing.placement,
            partner=standing.partner,
            finished=not standing.state.live,
            report=standing.report,
        )

    def progress(self, now: Seconds) -> float:
        """Progress at a time, the rate being constant since it was last set."""
        return self.done + self.rate * (now - self.since) if now > self.since else self.done
