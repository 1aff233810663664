"""State of one simulated job: as it is when a simulation begins in the middle, and as it changes from then on."""

from dataclasses import dataclass

import msgspec

from shoal.core.goodput import GoodputReport
from shoal.core.lifecycle import JobState
from shoal.core.retry import NO_CRASHES, Crashes
from shoal.core.topology import Placement
from shoal.core.units import Seconds
from shoal.perf.batch_tuner import BatchTuner


@dataclass(frozen=True, slots=True)
class JobStart:
    """State of a job at the moment a simulation begins, with its progress ``done`` settled to that moment.

    ``since`` is when it got the seats it holds or, for a job that is held back, when it will be released, infinity if
    that is not known; ``on_hold`` if a person holds it; ``rate`` is its speed as last measured. A job that is stopping
    holds no seats any more. With a ``report`` the job chooses its batch size, starting from the fits of that report.
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
    on_hold: bool = False
    bound: Placement | None = None
    """The seats from which it was suspended, if it is suspended."""


class JobRun(msgspec.Struct, eq=False):
    """Progress of a job: ``done`` at the time ``since``, and ``rate`` more per second from then on.

    ``began`` is the start of the incarnation and ``saved`` the progress it began with. ``stamp`` changes with every new
    rate and makes goals scheduled before it void. ``script_at`` and ``marks_at`` count the batch changes and the marks
    passed. A job that was ever granted an adaptive batch has a ``tuner``, which chooses its batch size while the job
    ``adapts``; ``noise`` is the true noise scale behind its present rate, ``report`` its last report before the
    simulation began.
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
    tuner: BatchTuner | None = None
    adapts: bool = False
    noise: float = 0.0
    report: GoodputReport | None = None
    bound: Placement | None = None
    """The seats from which it was suspended, if it is suspended or being resumed."""

    @classmethod
    def of(cls, standing: JobStart, now: Seconds) -> "JobRun":
        """Return the run of a job that is in this state now."""
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
            bound=standing.bound,
        )

    def progress(self, now: Seconds) -> float:
        """Progress at a time no earlier than the last change of rate, or the progress at that change."""
        return self.done + self.rate * (now - self.since) if now > self.since else self.done
