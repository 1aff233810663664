"""Simulations from a fork to the end, several variants (branches) for each seed, within a budget of CPU seconds."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import thread_time

from shoal.core.commands import Decided, Stop, Suspend
from shoal.core.events import EventBatch, JobCancelled, JobCompleted, JobCrashed
from shoal.core.interfaces import Journal
from shoal.core.units import Seconds
from shoal.engine.loop import Loop
from shoal.engine.replay import Scheduler
from shoal.forecast.fork import Fork
from shoal.perf.work_prior import DECLARED_SPREAD
from shoal.scenario.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Branch:
    """A fork and the scheduler that decides in it, from ``review_at`` on; ``label`` names the variant."""

    label: str
    scenario: Scenario
    scheduler: Scheduler
    fork: Fork
    review_at: Seconds

    def loop(self, journal: Journal, seed: int, spread: float = DECLARED_SPREAD) -> Loop:
        """Return a control loop on a simulation of its own."""
        scheduler, world, state = self.scheduler, self.fork.world(seed, spread), self.fork.state()
        deciders = (scheduler.policy, scheduler.placer, scheduler.move_planner)
        return Loop(world, state, *deciders, journal, review_at=self.review_at, judge=scheduler.judge)


@dataclass(slots=True)
class BranchOutcome:
    """Times of the live jobs in one simulation, by admission number, in seconds from its beginning.

    ``starts`` is when each first got GPUs (0 for those that hold some), ``ends`` when it completed or reached its time
    limit, ``waited`` how long it held none until then. ``cut`` is set where the CPU budget ran out first. It serves as
    the loop's journal.
    """

    fork: Fork
    starts: dict[int, Seconds] = field(default_factory=dict)
    ends: dict[int, Seconds] = field(default_factory=dict)
    waited: dict[int, Seconds] = field(default_factory=dict)
    stops: list[tuple[int, Seconds]] = field(default_factory=list)
    """Jobs that lost their GPUs, and when."""
    cut: bool = False
    _idle_since: dict[int, Seconds] = field(default_factory=dict)
    _now: Seconds = 0.0

    def __post_init__(self) -> None:
        waiting, now = self.fork.waiting, self.fork.now
        self.starts = {job: 0.0 for job in self.fork.live if job not in waiting}
        self.waited = dict.fromkeys(self.fork.live, 0.0)
        self._idle_since = {job: max(self.fork.specs[job].submitted, now) for job in waiting}

    def record_events(self, batch: EventBatch) -> None:
        """Note ends and crashes."""
        self._now = batch.now
        for event in batch.events:
            if isinstance(event, JobCrashed):
                self._idle_since.setdefault(event.job, event.at)
            elif isinstance(event, JobCompleted) or (isinstance(event, JobCancelled) and event.failed):
                self.ends[event.job] = event.at - self.fork.now

    def record_decision(self, decided: Decided) -> None:
        """Note starts and stops."""
        for command in decided.commands:
            if isinstance(command, Stop | Suspend):
                self._idle_since[command.job] = self._now
                self.stops.append((command.job, self._now - self.fork.now))
            elif (since := self._idle_since.pop(command.job, None)) is not None:
                self.waited[command.job] += self._now - since
                self.starts.setdefault(command.job, self._now - self.fork.now)

    def run(self, loop: Loop, seconds: float, *, to_starts: bool = False) -> "BranchOutcome":
        """Run the loop until every job has ended (or started), or the CPU seconds are spent."""
        enough = len(self.fork.live)
        until = thread_time() + seconds
        while loop.cycle() and not (to_starts and len(self.starts) == enough):
            if thread_time() > until:
                self.cut = True
                break
        return self


def run_branches(
    branches: Sequence[Branch], seeds: int, seconds: float, *, to_starts: bool = False
) -> list[list[BranchOutcome]]:
    """Outcomes by branch and seed, for as many seeds as fit into the CPU seconds.

    A seed that is cut in any branch is dropped, except the first. Each branch may use an equal part of the time left.
    """
    until = thread_time() + seconds
    outcomes: list[list[BranchOutcome]] = [[] for _ in branches]
    for seed in range(seeds):
        paired: list[BranchOutcome] = []
        for branch in branches:
            outcome, part = BranchOutcome(branch.fork), (until - thread_time()) / (len(branches) - len(paired))
            paired.append(outcome.run(branch.loop(outcome, seed), part, to_starts=to_starts))
        cut = any(outcome.cut for outcome in paired)
        if seed == 0 or not cut:
            for done, outcome in zip(outcomes, paired, strict=True):
                done.append(outcome)
        if cut:
            break
    return outcomes
