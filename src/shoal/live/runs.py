"""The runs of all jobs on all nodes: commands and agents' reports go in, events and orders for agents come out.

Bookkeeping only: the time is an argument, nothing is sent or locked. Events for the ring are collected in ``events``;
the orders of a node have a ``generation`` that counts up with each change.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from shoal.core.commands import Command, Resize, Resume, Start, Stop, Suspend
from shoal.core.events import (
    CancelRequested,
    Event,
    JobCancelled,
    JobCompleted,
    JobCrashed,
    JobReleased,
    JobRequeued,
    JobStopped,
    JobSubmitted,
    NodeLost,
    TimeLimitReached,
)
from shoal.core.job import JobSpec, Launch
from shoal.core.lifecycle import JobState
from shoal.core.retry import FIRST_RETRY
from shoal.core.topology import Node, Placement
from shoal.core.units import JobNumber, Seconds
from shoal.live.agent_status import AgentKey, Agents, RunKey, alone, steady_runs, unrunnable
from shoal.live.agent_waits import AgentWaits
from shoal.live.elastic_workers import workers_of
from shoal.live.gang import End, Gang, RunEnd
from shoal.live.held_jobs import HeldJobs
from shoal.live.live_job import LiveJob
from shoal.live.node_health import NodeHealth
from shoal.live.rate_tracker import RateTracker
from shoal.live.suspension import order_turn, turned
from shoal.wire.messages import RunOrder, RunReport


@dataclass(slots=True)
class RunRegistry:
    """The live jobs and those that ended lately, and by node the runs that it has and should have."""

    nodes: Sequence[Node]
    speed: Callable[[JobSpec, Placement], float]
    first_retry: Seconds = FIRST_RETRY
    events: list[Event] = field(default_factory=list)
    """Events for the ring, in order; the caller removes them."""
    ending: list[Gang] = field(default_factory=list)
    """Gangs whose end is in ``events``; the caller passes them to ``confirm_ends`` when the events are durable."""
    agents: Agents = field(default_factory=Agents)
    submitted: int = 0
    """Number of jobs ever submitted."""
    health: NodeHealth = field(init=False)
    held: HeldJobs = field(init=False)
    waits: AgentWaits = field(init=False)
    _jobs: dict[JobNumber, LiveJob] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.held = HeldJobs(self._jobs)
        self.health = NodeHealth(self.nodes)
        for index in range(len(self.nodes)):
            self.agents.set_node(index)
        self.waits = AgentWaits(self.agents)

    # ── requests and commands ─────────────────────────────────────────────────────────────────────────────────

    def submit(self, spec: JobSpec, launch: Launch, now: Seconds) -> None:
        """Add a job; its number is the count of those before it."""
        job = self._jobs[self.submitted] = LiveJob(spec, launch, batch_size=spec.batch_size)
        self.events.append(JobSubmitted(now, spec, launch))
        self.held.submit(self.submitted, job)
        self.submitted += 1
        self.release_waiting(now)

    def release_waiting(self, now: Seconds) -> None:
        """Release the jobs whose conditions hold now, and cancel those whose conditions never can."""
        for number, cause in self.held.waiting.due():
            if cause:
                self._cancel(number, now, cause=cause)
            else:
                self._jobs[number].released = True
                self.events.append(JobReleased(now, number))

    def requeue(self, number: JobNumber, now: Seconds, by: str) -> bool:
        """Stop a job's run for its owner; return false if it has none. The job waits again when the run has ended."""
        job = self._jobs.get(number)
        gang = job.gangs[-1] if job is not None and job.gangs and not job.over else None
        if gang is None or gang.stopping or gang.end_reported:
            return False
        self.events.append(JobRequeued(now, number, gang.incarnation, by))
        self._stop_run(number, gang.incarnation)
        self._advance(number, now)
        return True

    def _stop_run(self, number: JobNumber, incarnation: int, *, yields: bool = False) -> None:
        for gang in self._jobs[number].gangs:
            if gang.latest.incarnation == incarnation and not gang.stopping:
                gang.stopping, gang.yields = True, yields
                self._orders_changed(gang)

    def cancel(self, number: JobNumber, now: Seconds, *, force: bool = False) -> None:
        """Cancel a job and stop its runs, with ``force`` without grace; a job that is over stays as it ended.

        It holds its GPUs until its last process is gone. A job that shares them with another is reported as gone at
        once, since they stay the other's.
        """
        self._cancel(number, now, force=force)
        self.release_waiting(now)

    def _cancel(self, number: JobNumber, now: Seconds, *, cause: str = "", force: bool = False) -> None:
        """Do as ``cancel``; a job that has timed out fails. The caller calls ``release_waiting``."""
        job = self._jobs.get(number)
        if job is None or (job.over and not force):
            return
        first, job.over = not job.over, True
        if first:
            self.held.end_timers(number)
            job.cancelling = any(not gang.end_reported for gang in job.gangs) and not self._shares_gpus(number)
            if not job.cancelling:
                self._gone(number, now, cause)
        if job.cancelling and not (first and job.timed_out):
            self.events.append(CancelRequested(now, number, now + (0.0 if force else job.launch.grace)))
        for gang in job.gangs:
            gang.forced, gang.yields = gang.forced or force, False
            if first:
                gang.stopping = gang.end_reported = True
            self._orders_changed(gang)

    def _gone(self, number: JobNumber, now: Seconds, cause: str = "") -> None:
        """Report that a cancelled job holds no GPUs any more."""
        job = self._jobs[number]
        job.cancelling = False
        self.events.append(JobCancelled(now, number, cause, job.timed_out))
        self.ending += job.gangs
        self.held.over(number, JobState.FAILED if job.timed_out else JobState.CANCELLED)

    def _shares_gpus(self, number: JobNumber) -> bool:
        gangs = self._jobs[number].gangs
        beside = (other for gang in gangs for node in gang.parts for other in self.agents.nodes[node].gangs.values())
        return any(gang.partner is not None for gang in gangs) or any(other.partner == number for other in beside)

    def latest_gang(self, job: JobNumber) -> Gang | None:
        """Return the gang of a job's latest incarnation, if it has one."""
        return self._jobs[job].gangs[-1] if job in self._jobs and self._jobs[job].gangs else None

    def over(self, job: JobNumber) -> bool:
        """Return whether a job has ended or was cancelled."""
        return job not in self._jobs or self._jobs[job].over

    def forget(self, ended: Iterable[JobNumber]) -> None:
        """Drop these jobs, whose end is durable, unless a process of theirs may be left."""
        self.held.forget(ended)

    def carry_out(self, command: Command, now: Seconds) -> None:
        """Turn a command into orders for agents, as far as that is possible now."""
        if isinstance(command, Stop):
            self._stop_run(command.job, command.incarnation, yields=True)
        elif isinstance(command, Suspend | Resume):
            order_turn(self, self._jobs[command.job], command)
        elif not (isinstance(command, Resize) and self._resized_in_place(command, now)):
            self._start(command, now)
        self._advance(command.job, now)

    def _start(self, command: Start | Resize, now: Seconds) -> None:
        job = self._jobs[command.job]
        for gang in job.gangs if isinstance(command, Resize) else ():
            # The ring already expects the next incarnation and ignores events of this one.
            gang.stopping = gang.end_reported = gang.end_durable = True
            self._orders_changed(gang)
        if job.incarnation >= command.incarnation:
            return
        # An incarnation that crashed after its successor was ordered must not hold the successor back.
        self.held.releases.pop(command.job, None)
        if job.over:
            self._repeat_end(command, now)
        else:
            self._add_gang(command, now)

    def _repeat_end(self, command: Start | Resize, now: Seconds) -> None:
        """Report the end of a job again, for the incarnation that the ring ordered while the job was ending.

        The ring ignores events of the incarnation that ended.
        """
        job = self._jobs[command.job]
        job.incarnation = command.incarnation
        if job.end is not None:  # else it was cancelled: that event names no incarnation
            self.events.append(replace(job.end, at=now, incarnation=command.incarnation))

    def _resized_in_place(self, command: Resize, now: Seconds) -> bool:
        """Keep the workers that can stay and add the missing ones; return whether that was possible."""
        job = self._jobs[command.job]
        last = job.gangs[-1] if job.gangs else None
        if last is None or last.workers is None or job.over or job.incarnation >= command.incarnation:
            return False
        kept = last.workers_to_keep(command.placement)
        # Running ranks keep the batch size and the devices they were started with; an allocation keeps its GPUs.
        if self.agents.native and last.workers.splits(kept):
            return False
        if not kept or command.batch != last.batch or (command.partner, last.partner) != (None, None):
            return False
        last.end_reported = last.end_durable = last.progress_counted = True
        # Its own ranks, if not all are up, have not joined the others and are stopped.
        last.stopping = not last.started
        self.held.releases.pop(command.job, None)
        last.workers.set_members(kept)
        self._add_gang(command, now, after=last)
        return True

    def _add_gang(self, command: Start | Resize, now: Seconds, *, after: Gang | None = None) -> Gang:
        """Add the gang of a new incarnation: ``after`` another in place, or from the job's checkpoint."""
        job = self._jobs[command.job]
        job.incarnation, earlier = command.incarnation, None if after is None else after.workers
        workers, seats = workers_of(command, earlier) if job.launch.in_place else (None, command.placement.seats)
        gang = Gang(
            command.job, command.incarnation, job.spec.id, job.launch, command.placement, command.partner,
            base=job.saved, work=job.spec.work, batch=command.batch, limits=job.spec.limits, tenant=job.spec.tenant,
            tracker=RateTracker(job.expected_rate(command.placement, self.speed), now, job.saved),
            time=job.spec.time, gate=job.waits_at_gate, running_since=now, workers=workers,
            chain=[] if after is None else after.chain, own_seats=seats,
        )  # fmt: skip
        if after is not None:
            gang.base, gang.done, gang.saved = job.progress_after(after, End.STOPPED, now), after.done, after.saved
        job.gangs.append(gang)
        for node in gang.parts:
            self.agents.add(gang, self.nodes[node].name, node, now)
        self._orders_changed(gang)
        return gang

    # ── reports and time ──────────────────────────────────────────────────────────────────────────────────────

    def report(self, key: AgentKey, runs: list[RunReport], now: Seconds) -> None:
        """Process an agent's report of all its runs, with all its consequences."""
        agent = self.agents[key]
        first = agent.last_report is None
        agent.last_report = agent.last_contact = now
        unchanged = set() if first else {(run.job, run.incarnation) for run in runs if agent.changes_nothing(run)}
        strays = set()
        for run in runs:
            gang = agent.gangs.get(run_key := (run.job, run.incarnation))
            if run_key in unchanged:
                continue
            if gang is not None and not gang.lost(agent.node):
                gang.update(agent.node, run)
                for other in self.agents.serving_all(gang):
                    other.orders = None
                self._jobs[run.job].note_session(gang)
                self.events += self._jobs[run.job].training_events(gang.latest, now)
                turned(self, self._jobs[run.job], gang, run.suspension, now)
            elif run.phase != "ended" and run.job < self.submitted:
                strays.add(run.job)
        cleared, agent.strays = agent.strays - strays, frozenset(strays)
        if strays:
            self.waits.unsure(agent)
        others = (*cleared, *(self.waits.unblocked_by_report() if first else ()))
        self._advance_agent(key, now, others, unchanged)
        agent.steady = steady_runs(runs)

    def reboot(self, key: AgentKey, now: Seconds, kept: Collection[tuple[JobNumber, int]] = ()) -> None:
        """Mark an agent's runs as lost, except those (job, incarnation) that the agent after it has ``kept``."""
        # The message may come late, from an agent that has ended: only the next report says what is there.
        agent = self.agents[key]
        agent.last_report = None
        self.waits.unsure(agent)
        self.waits.orders_changed(agent)
        for gang in [gang for run, gang in agent.gangs.items() if run not in kept]:
            gang.lose(agent.node, rebooted=True)
            self._advance(gang.job, now)

    def lose(self, key: AgentKey, now: Seconds, quiet_at: Seconds = -inf) -> None:
        """Mark an agent as lost, which was silent for too long, and with it the node that it served as a whole.

        A run of it is certain to be gone at ``quiet_at`` plus the run's grace.
        """
        agent = self.agents[key]
        agent.up, agent.quiet_at, agent.suspension = False, quiet_at, None
        self.waits.orders_changed(agent)
        if not agent.allocation:
            self.agents.nodes[agent.node].up = False
            self.events.append(NodeLost(now, agent.node))
        elif not agent.gangs:
            self.agents.forget(agent)
            return
        self.settle(key, now)

    def settle(self, key: AgentKey, now: Seconds) -> None:
        """Mark the runs of a lost agent as lost whose grace has passed, and advance jobs that waited for that."""
        agent = self.agents[key]
        agent.settled_at = now
        for gang in tuple(agent.gangs.values()):
            if now >= agent.quiet_at + gang.launch.grace:
                gang.lose(agent.node)
        here = ((number, self._jobs[number].launch.grace) for number in agent.strays if number in self._jobs)
        agent.strays = frozenset(number for number, grace in here if now < agent.quiet_at + grace)
        self._advance_agent(key, now, tuple(self.waits.blocked))
        self.waits.look(agent, self.waits.next_settlement(agent))

    def release(self, now: Seconds) -> None:
        """Release the held jobs that may be started by ``now``, and end the runs that have reached their time limit."""
        self.events += [JobReleased(now, number) for number in self.held.timers(now)]
        for number, limit in self.held.overdue(now):
            job = self._jobs[number]
            job.timed_out = True
            self.events.append(TimeLimitReached(now, number, limit, now + job.launch.grace))
            self._cancel(number, now)
        self.release_waiting(now)

    def probe(self, now: Seconds) -> None:
        """Let the drained nodes that are due be tried with one start each."""

        def starting(node: int) -> bool:
            return any(not gang.started and not gang.end_reported for gang in self.agents.nodes[node].gangs.values())

        self.events += self.health.probe(now, starting)

    def confirm_ends(self, ended: Iterable[Gang], now: Seconds) -> None:
        """Mark the ends of these gangs as durable; drop gangs that have no process left."""
        for gang in ended:
            gang.end_durable = True
            self._advance(gang.job, now)

    # ── orders ────────────────────────────────────────────────────────────────────────────────────────────────

    def orders(self, key: AgentKey) -> list[RunOrder]:
        """Return an order for every run that an agent should have."""
        agent, found = self.agents[key], []
        for gang in agent.gangs.values():

            def address(node: int, gang: Gang = gang) -> str:
                return self.agents.serving(gang, node).address

            order = gang.order(agent.node, address(gang.head, gang.chain[0]))
            if order is not None:
                found.append(gang.with_hosts(order, address))
        return found

    def place(self, job: JobNumber, incarnation: int, rank: int) -> tuple[int, int, int] | None:
        """Return a rank's node, the incarnation that started it and its number then; None if not resized in place."""
        ranks = self._jobs[job].places.get(incarnation, ()) if job in self._jobs else ()
        return ranks[rank] if rank < len(ranks) else None

    def _orders_changed(self, gang: Gang) -> None:
        for agent in self.agents.serving_all(gang):
            self.waits.orders_changed(agent)

    # ── advancing jobs ────────────────────────────────────────────────────────────────────────────────────────

    def _advance_agent(
        self, key: AgentKey, now: Seconds, others: Iterable[JobNumber] = (), unchanged: Collection[RunKey] = ()
    ) -> None:
        """Advance the jobs of an agent, except its ``unchanged`` runs, and the ``others``, which may have waited."""
        here = [run[0] for run in self.agents[key].gangs if run not in unchanged]
        for job in dict.fromkeys([*here, *others]):
            if job in self._jobs:
                self._advance(job, now)

    def _advance(self, number: JobNumber, now: Seconds) -> None:
        """Advance a job as far as the reports on its gangs allow: report ends and starts, and order ranks to start."""
        job = self._jobs[number]
        for gang in tuple(job.gangs):
            if gang.workers is not None and gang.latest is gang and not gang.stopping and gang.workers.drop_failed():
                self._orders_changed(gang)
            end = gang.outcome(self.nodes)
            if end is not None:
                self._report_end(job, gang, end, now)
            elif gang.up and not gang.started and not gang.stopping:
                self.events.append(job.start(gang, now))
                self.held.started(number, now, first=gang.chain[0] is gang)
                self.events += self.health.started(number, gang.parts, job.failed_on, now)
                if gang.workers is not None:
                    self._orders_changed(gang)
            if gang.over and gang.end_reported:
                self._clear(job, gang, now)
        if job.cancelling and all(gang.over for gang in job.gangs):
            self._gone(number, now)
        if job.gangs:
            self._go(job, job.gangs[-1], now)
        else:
            self.waits.blocked.pop(number, None)
        self.release_waiting(now)

    def _clear(self, job: LiveJob, gang: Gang, now: Seconds) -> None:
        """Add the progress of a gang without processes to its job, and drop the gang if its end is durable."""
        if not gang.progress_counted:
            job.saved, gang.progress_counted = job.progress_after(gang, End.STOPPED, now), True
        if gang.end_durable:
            job.gangs.remove(gang)
            self._orders_changed(gang)
            for node in gang.parts:
                self.agents.drop(gang, node)
            if not any(each in job.gangs for each in gang.chain):
                gang.chain.clear()  # it holds the gang itself, which only a full garbage collection would free

    def _go(self, job: LiveJob, gang: Gang, now: Seconds) -> None:
        """Order the ranks of the latest gang to start, if they may."""
        joins = gang.chain[0] is not gang
        self.waits.blocked.pop(gang.job, None)
        if gang.going or not gang.may_go(alone=True):
            return
        if joins or alone(self.waits.unclear(), job, gang, now):
            gang.base, gang.going = gang.base if joins else job.saved, True
            self._orders_changed(gang)
        else:
            self.waits.block(gang.job, job.launch.grace)

    def _report_end(self, job: LiveJob, gang: Gang, outcome: RunEnd, now: Seconds) -> None:
        """Report the end of an incarnation to the ring, and order its remaining processes to stop."""
        saved = job.saved = job.progress_after(gang, outcome.end, now)
        gang.end_reported = gang.progress_counted = True
        self.ending.append(gang)
        for each in gang.chain:
            each.stopping = True
        self._orders_changed(gang)
        work = job.spec.work
        done = work is not None and gang.done is not None and saved >= work
        finished = outcome.end is End.STOPPED and done and gang.all_left
        if finished or outcome.end is End.COMPLETED:
            job.end = JobCompleted(now, gang.job, gang.incarnation, saved)
            self.events.append(job.end)
            self.held.over(gang.job, JobState.COMPLETED)
        elif outcome.end is End.STOPPED:
            self.events.append(JobStopped(now, gang.job, gang.incarnation, saved, job.lost_after(gang, now)))
        else:
            self._crashed(job, gang, outcome, now)

    def _crashed(self, job: LiveJob, gang: Gang, outcome: RunEnd, now: Seconds) -> None:
        saved, blamed, cause = job.saved, outcome.end is End.CRASHED, outcome.cause
        node, status, run = outcome.failed_on, outcome.status, (now, gang.job, gang.incarnation)
        ran = gang.chain[0].ran(now) if gang.started else 0.0
        job.crashes, failed, retry = job.crashes.after(
            saved, blamed=blamed, ran=ran, began=node is None, fresh=gang.chain[0].base <= 0.0,
            unrunnable=node is not None and unrunnable(self.agents, self.nodes, job, node),
            retries=job.launch.retries, first_retry=self.first_retry,
        )  # fmt: skip
        self.events.append(crash := JobCrashed(*run, saved, blamed, cause, retry, ran, node, failed, status))
        if node is not None:
            job.failed_on.add(node)
            self.health.failed(node, cause, now)
        if failed:
            job.end = crash
            self.held.over(gang.job, JobState.FAILED)
        if retry:
            self.held.back_off(gang.job, now + retry)
