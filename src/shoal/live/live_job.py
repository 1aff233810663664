"""A job as the live backend tracks it: its gangs, its progress, and the events that follow from reports on it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf

from shoal.core import events
from shoal.core.goodput import GoodputReport
from shoal.core.job import ADAPTIVE, JobSpec, Launch
from shoal.core.lifecycle import JobState
from shoal.core.retry import NO_CRASHES, Crashes
from shoal.core.topology import Node, Placement
from shoal.core.units import Seconds
from shoal.live import report_filter
from shoal.live.gang import End, Gang
from shoal.live.rate_tracker import MIN_INTERVAL
from shoal.live.save_tracker import SaveTracker


@dataclass(slots=True)
class LiveJob:
    """One job. Progress and rates are in the unit of its work."""

    spec: JobSpec
    launch: Launch
    saved: float = 0.0
    crashes: Crashes = NO_CRASHES
    failed_on: set[int] = field(default_factory=set)
    """Nodes that could not start its ranks."""
    incarnation: int = 0
    batch_size: int | None = None
    """The last batch size that the job's script is known to have chosen."""
    measured: tuple[float, Placement] | None = None
    """The last measured rate, and the placement it was measured on."""
    started: bool = False
    """Whether its ranks were ever up."""
    released: bool = False
    """Whether the conditions it was submitted with held."""
    on_hold: bool = False
    """Whether a person holds it."""
    over: bool = False
    cancelling: bool = False
    """Whether it was cancelled, or reached its time limit, and the end of its runs is not reported yet."""
    timed_out: bool = False
    """Whether it reached its time limit."""
    ended: JobState | None = None
    """The state it ended in."""
    end: events.JobCompleted | events.JobCrashed | None = None
    """The event of its end, unless it was cancelled or ended before this control plane started."""
    profile: GoodputReport | None = None
    """The goodput report last passed on to the ring, at ``profiled_at``."""
    profiled_at: Seconds = 0.0
    waits_at_gate: bool = False
    """Whether its trainer library reported that it can be held at the gate."""
    saves: SaveTracker = field(default_factory=SaveTracker)
    gangs: list[Gang] = field(default_factory=list)
    """Gangs that may have processes on a node, the latest last."""
    places: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    """By incarnation, if resized in place: for each rank its node, the incarnation that started it, its number."""

    @property
    def state(self) -> JobState:
        """Its state as other jobs depend on it: PENDING until its first start, then RUNNING until its end."""
        return self.ended or (JobState.RUNNING if self.started else JobState.PENDING)

    def expected_rate(self, placement: Placement, speed: Callable[[JobSpec, Placement], float]) -> float:
        """Return the rate by ``speed``, corrected by the measurement on the job's last placement."""
        expected = speed(self.spec, placement)
        if self.measured is None:
            return expected
        rate, there = self.measured
        return expected * rate / speed(self.spec, there)

    def can_start_on(self, nodes: Mapping[int, Node]) -> bool:
        """Return whether those of the nodes that have not failed to start it have the GPUs it needs."""
        kinds = self.spec.kinds
        untried = (node for index, node in nodes.items() if index not in self.failed_on)
        return sum(node.gpus for node in untried if kinds is None or node.kind in kinds) >= self.spec.min_gpus

    def start(self, gang: Gang, now: Seconds) -> events.JobStarted:
        """Note that all ranks of a gang are up; return the event."""
        self.started = gang.started = True
        gang.running_since = now
        if gang.workers is not None:
            gang.workers.admit(gang.incarnation)
            self.places[gang.incarnation] = gang.workers.places
        gang.tracker.reported(now, gang.tracker.rate, gang.progress)
        return events.JobStarted(now, gang.job, gang.incarnation, gang.tracker.rate, gang.progress)

    def note_session(self, gang: Gang) -> None:
        """Note the report of a gang's trainer library on the job itself."""
        if gang.session is not None:
            self.waits_at_gate = gang.session.gate

    def training_events(self, gang: Gang, now: Seconds) -> list[events.Event]:
        """Return the events that the ring needs about a running gang's progress and training."""
        if not gang.started or gang.stopping or gang.suspended:
            return []
        found = (self._measured(gang, now), self._trained(gang, now), self._saved(gang, now))
        return [event for event in found if event is not None]

    def _measured(self, gang: Gang, now: Seconds) -> events.Event | None:
        rate = None if gang.done is None else gang.tracker.observe(now, gang.done)
        if rate is None:
            return None
        self._report_rate(gang, now, rate)
        return events.JobMeasured(now, gang.job, gang.incarnation, rate, gang.progress)

    def _saved(self, gang: Gang, now: Seconds) -> events.Event | None:
        if self.spec.preemptible == "yes" or gang.saved is None:  # the ring does not ask what it saves
            return None
        age = self.saves.observe(now, gang)
        if age is None:
            return None
        when_warned = gang.session is not None and gang.session.saves
        return events.JobSaved(now, gang.job, gang.incarnation, gang.saved, age, when_warned)

    def _trained(self, gang: Gang, now: Seconds) -> events.Event | None:
        session = gang.session
        if session is None or not session.rate:
            return None
        if session.profile is not None and report_filter.credible(session.profile):
            return self._profiled(gang, now, session.rate, session.profile)
        if session.batch_size in (None, self.batch_size) or gang.batch == ADAPTIVE:
            return None
        return self._batch_changed(gang, now, session.rate, session.batch_size)

    def _profiled(self, gang: Gang, now: Seconds, rate: float, report: GoodputReport) -> events.Event | None:
        grown = self.profile is None or report.seen_gpus > self.profile.seen_gpus
        due = grown or now - self.profiled_at >= MIN_INTERVAL
        if not due or not report_filter.differs(self.profile, report):
            return None
        self.profile, self.profiled_at = report, now
        self._report_rate(gang, now, rate)
        return events.JobProfiled(now, gang.job, gang.incarnation, rate, gang.progress, report, urgent=grown)

    def _batch_changed(self, gang: Gang, now: Seconds, rate: float, batch_size: int) -> events.Event | None:
        before, self.batch_size = self.batch_size, batch_size
        if before is None:
            return None
        self._report_rate(gang, now, rate)
        return events.BatchChanged(now, gang.job, gang.incarnation, rate, gang.progress, batch_size)

    def _report_rate(self, gang: Gang, now: Seconds, rate: float) -> None:
        gang.tracker.reported(now, rate, gang.progress)
        self.measured = rate, gang.placement

    def progress_now(self, gang: Gang, now: Seconds) -> float:
        """Return a gang's progress: as reported, else estimated from the time it ran and its rate."""
        return self._estimate(gang, End.STOPPED, now) if gang.done is None else gang.done

    def lost_after(self, gang: Gang, now: Seconds) -> float:
        """Return the progress that a stopped gang had made and has not saved."""
        return max(0.0, self.progress_now(gang, now) - self.progress_after(gang, End.STOPPED, now))

    def progress_after(self, gang: Gang, end: End, now: Seconds) -> float:
        """Return the progress that a gang leaves at its end: the saved part, or all of it if the run ended in order.

        Progress that was not reported is estimated from time and rate.
        """
        if gang.saved is not None:
            return gang.saved
        in_order = end in (End.STOPPED, End.COMPLETED) and not gang.killed
        if gang.done is not None and (in_order or self.spec.preemptible == "yes"):
            return gang.done
        return self._estimate(gang, end, now) if in_order else gang.base

    def _estimate(self, gang: Gang, end: End, now: Seconds) -> float:
        """Return the progress of a gang that reports none, from time and rate."""
        ran = gang.tracker.rate * gang.ran(now) if gang.started else 0.0
        work = self.spec.work
        return min(gang.base + ran, inf if work is None or end is End.COMPLETED else work)


def next_turn(turn: int, *, suspend: bool) -> int:
    """Return the number of the next order to suspend or to resume a gang: odd to suspend it, even to resume it."""
    return turn + 1 if (turn + 1) % 2 == suspend else turn + 2
