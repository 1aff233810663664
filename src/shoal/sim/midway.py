"""Simulations that begin in the middle of jobs' lives."""

from typing import TYPE_CHECKING

from shoal.core.events import JobStopped
from shoal.core.lifecycle import JobState
from shoal.sim.job_run import JobRun, JobStart

if TYPE_CHECKING:
    from shoal.sim.backend import SimulatedBackend


def continue_job(backend: "SimulatedBackend", job: int, run: JobRun, standing: JobStart) -> None:
    """Continue a job from the state it is in when the simulation begins."""
    if run.finished:
        backend._unfinished -= 1
        return
    run.script_at = sum(1 for at, _ in backend.truth.jobs[job].batch_schedule if at <= run.done)
    if standing.report is not None and run.placement is not None:
        backend._adaptive.adapt(job, run, backend.specs[job])
        if run.adapts:
            backend._adaptive.allocate(run)
    if standing.state is JobState.HELD:
        backend._hold_back(job, max(standing.since, backend.now))
    elif standing.state is JobState.STOPPING:
        backend._outbox.append(JobStopped(backend.now, job, run.incarnation, run.done))
    elif standing.state is JobState.STARTING:
        backend._begin_training(job, run, standing.since + backend._start_cost(job, run.incarnation - 1))
    elif standing.state is JobState.RUNNING:
        backend._jobs.seated.add(job)
        backend._jobs.rerate(job, backend.now)
        backend._await_tick(job, run)
        backend._await_save(job, run)
