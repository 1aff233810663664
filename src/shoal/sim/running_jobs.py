"""True speed and progress of simulated jobs on their seats, and when each reaches its next goal.

A rate is constant until something changes it: seats, a partner on the same GPUs, gangs that interfere on the network,
a slow node, another batch size. Then progress is settled, the rate is set anew and the next goal is scheduled.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shoal.core.events import Event, JobMeasured
from shoal.core.topology import Placement
from shoal.core.units import JobId, Seconds
from shoal.sim.adaptive_jobs import AdaptiveJobs
from shoal.sim.checkpoints import kept_at_stop, set_back
from shoal.sim.event_queue import EventQueue, Happening
from shoal.sim.job_run import JobRun
from shoal.sim.truth import Truth


@dataclass(slots=True)
class RunningJobs:
    """Runs of all admitted jobs, by admission number; ``seated`` are the numbers of those that hold GPUs.

    ``marks`` are progress values, by job id, at which a job is measured. Gangs over several nodes that share a node run
    at ``interference_speed``. Where a change makes another job faster or slower, its `JobMeasured` goes to ``outbox``.
    """

    truth: Truth
    adaptive: AdaptiveJobs
    queue: EventQueue
    outbox: list[Event]
    marks: Mapping[JobId, Sequence[float]]
    interference_speed: float
    runs: list[JobRun] = field(default_factory=list)
    seated: set[int] = field(default_factory=set)

    def on(self, node: int, *, bound: bool = False) -> list[int]:
        """The jobs with a seat on a node, in order of admission; with ``bound`` also those suspended there."""
        if bound:
            there = (run.placement or run.bound for run in self.runs)
            return [job for job, seats in enumerate(there) if seats is not None and node in seats.nodes]
        return [j for j in sorted(self.seated) if (p := self.runs[j].placement) is not None and node in p.nodes]

    def busy(self) -> dict[int, int]:
        """GPUs in use, by node; those that two jobs share count twice."""
        taken: dict[int, int] = {}
        for job in self.seated:
            placement = self.runs[job].placement
            for node, count in placement.seats if placement is not None else ():
                taken[node] = taken.get(node, 0) + count
        return taken

    def leave(self, job: int, now: Seconds) -> None:
        """Settle a job's progress and take its seats away; its partner and its neighbours run on without it."""
        run = self.runs[job]
        run.done = run.progress(now)
        left, run.placement, run.rate = run.placement, None, 0.0
        run.stamp += 1
        self.seated.discard(job)
        if left is not None:
            self.truth.network_speed.pop(job, None)
            self.interfere(left, now)
        partner, run.partner = run.partner, None
        if partner is not None and self.runs[partner].partner == job:
            self.runs[partner].partner = None
            self.rerate(partner, now)

    def stop(self, job: int, now: Seconds) -> float:
        """Stop a job, which keeps what it has saved, and take its seats away; return the progress that is lost."""
        run, truth = self.runs[job], self.truth.jobs[job]
        kept = kept_at_stop(truth, run, now)
        self.leave(job, now)
        lost = run.done - kept
        if lost:
            set_back(truth, run, kept)
        return lost

    def pair(self, job: int, partner: int, now: Seconds) -> None:
        """Let two jobs share their GPUs."""
        other = self.runs[partner]
        if other.placement is not None:
            other.partner = job
            self.rerate(partner, now)

    def interfere(self, changed: Placement, now: Seconds) -> None:
        """Update the slowdown of gangs over several nodes on the nodes of seats that were just taken or left."""
        speed = self.interference_speed
        if speed == 1.0 or len(changed.seats) == 1:
            return
        for job in sorted({job for node in changed.nodes for job in self._spanning(node)}):
            placement, before = self.runs[job].placement, self.truth.network_speed.pop(job, 1.0)
            assert placement is not None
            shared = any(len(self._spanning(node)) > 1 for node in placement.nodes)
            if shared:
                self.truth.network_speed[job] = speed
            if shared != (before != 1.0):
                self.rerate(job, now)

    def _spanning(self, node: int) -> list[int]:
        return [j for j in self.on(node) if (p := self.runs[j].placement) is not None and len(p.seats) > 1]

    def rerate(self, job: int, now: Seconds) -> None:
        """Settle a job's progress and set the rate for its present seats, partner and neighbours."""
        run = self.runs[job]
        if run.placement is None:
            return
        before = run.rate
        run.done = run.progress(now)
        run.since = max(run.since, now)
        self.set_rate(job)
        if run.since <= now and run.rate != before:
            self.outbox.append(JobMeasured(now, job, run.incarnation, run.rate, run.done))

    def partner(self, job: int) -> int | None:
        """The job that shares a job's GPUs now."""
        partner = self.runs[job].partner
        return partner if partner is not None and self.runs[partner].placement is not None else None

    def rate(self, job: int, partner: int | None) -> float:
        """True work per second on the seats held, beside a partner."""
        run = self.runs[job]
        assert run.placement is not None
        if run.adapts:
            return self.adaptive.rate(job, run, partner)
        return self.truth.rate(job, run.placement, run.batch_size, partner)

    def set_rate(self, job: int) -> None:
        """Set the rate for the seats held, and schedule the job's next goal: a batch change, a mark or its end."""
        run = self.runs[job]
        partner = None if run.partner is None else self.partner(job)
        run.rate = self.rate(job, partner)
        run.stamp += 1
        if run.rate <= 0.0:
            return
        truth = self.truth.jobs[job]
        script = () if run.adapts else truth.batch_schedule  # a job that adapts does not follow its owner's script
        while run.script_at < len(script) and script[run.script_at][0] <= run.done:
            run.batch_size = script[run.script_at][1]
            run.script_at += 1
            run.rate = self.rate(job, partner)
        if run.rate <= 0.0:
            return
        goal, what = truth.work, Happening.COMPLETED
        if run.script_at < len(script) and script[run.script_at][0] < goal:
            goal, what = script[run.script_at][0], Happening.BATCH_CHANGED
        marks = self.marks.get(truth.id, ()) if self.marks else ()
        if run.marks_at < len(marks) and marks[run.marks_at] < goal:
            goal, what = marks[run.marks_at], Happening.MARKED
        # At the moment a job ends, rounding can put its progress just past its goal: time must not run back.
        self.queue.push(run.since + max(goal - run.done, 0.0) / run.rate, what, job, run.stamp)
