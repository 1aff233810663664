"""Resuming the runs of a journal after a restart of the control plane."""

from copy import copy

from shoal.core.events import NodeLost
from shoal.core.units import Seconds
from shoal.live.recovery import RecoveredRuns
from shoal.live.runs import RunRegistry
from shoal.live.suspension import answer_in_place


def resume(
    runs: RunRegistry, recovered: RecoveredRuns, down: frozenset[int], now: Seconds, lease: Seconds = 0.0
) -> None:
    """Resume the runs that a journal left unfinished; ``down`` are the nodes that the ring counts as down.

    ``lease`` is the time in which a run without grace ends by itself, with the margin for killing it.
    Nodes that were up at the journal's end have a lease's time to answer. A node that the ring counts as up
    although it never answered is reported lost.
    """
    native = runs.agents.native
    for index, agent in enumerate(runs.agents.of_nodes):
        up = runs.agents.nodes[index].up = recovered.up.get(index, False)
        agent.up, agent.last_contact = up and not native, now
        agent.place = recovered.places.get(index, "")
        # Above every generation of an earlier control plane, so that its late answers are recognised as old.
        agent.generation = round(1000 * now) + 1
        if agent.up:
            runs.waits.look(agent, now)
        if not up and index not in down:
            runs.events.append(NodeLost(now, index))
    runs.health.resume_counts(recovered.failures, recovered.causes)
    runs.health.resume_drains(recovered.drained, now)
    runs.submitted = recovered.submitted
    runs._jobs |= {number: copy(job) for number, job in recovered.jobs.items()}
    for _, run in sorted(recovered.runs.items()):
        gang = runs._add_gang(run.command, now)
        gang.resumed, gang.started, gang.stopping = True, run.started, run.stopping
        gang.end_reported = runs._jobs[gang.job].cancelling
        gang.turn, gang.turned, gang.limit_left = run.turn, run.turned, run.limit_left
        gang.suspended_at = now if run.turned % 2 else None
    runs.held.resume(recovered.releases, recovered.limits)
    answer_in_place(runs, {run.command.job for run in recovered.runs.values()}, now)
    for number in [number for number, job in runs._jobs.items() if job.cancelling]:
        runs._advance(number, now)
    for agent in runs.agents.of_nodes:
        if native or (agent.gangs and not agent.up):  # a run on a lost node that may still have been within its grace
            agent.quiet_at = now + lease
            runs.waits.look(agent, now)
    for agent in runs.agents.of_runs:  # it answers within its lease, unless its allocation still waits
        agent.up, agent.last_contact = True, now
