"""Checkpoints of simulated jobs, and the progress that the jobs keep when they are stopped or crash."""

from shoal.core.units import Seconds
from shoal.sim.job_run import JobRun
from shoal.workload.schema import Job


def kept_at_stop(job: Job, run: JobRun, now: Seconds) -> float:
    """Return the progress that a stopped job keeps: all of it if it saves when it is stopped, else the saved part."""
    return run.progress(now) if job.preemptible == "yes" else kept_at_crash(job, run, now, 0.0)


def kept_at_crash(job: Job, run: JobRun, now: Seconds, checkpoint_every: Seconds) -> float:
    """Progress at a job's last checkpoint; jobs that save when they are stopped have one every ``checkpoint_every``."""
    every = checkpoint_every if job.preemptible == "yes" else job.save_every
    ran = max(0.0, now - run.began)
    return run.saved if every is None else max(run.saved, run.progress(now) - run.rate * (ran % every))


def set_back(job: Job, run: JobRun, kept: float) -> None:
    """Set a job that holds no seats back to this progress and to its batch size there."""
    run.done = kept
    run.script_at = sum(1 for at, _ in job.batch_schedule if at <= kept)
    run.batch_size = job.batch_schedule[run.script_at - 1][1] if run.script_at else job.batch_size


def next_save(job: Job, run: JobRun, now: Seconds) -> Seconds | None:
    """When a running job saves next; None if it saves only when it is stopped, or never."""
    if job.save_every is None:
        return None
    saves = max(0.0, now - run.began) // job.save_every + 1
    at = run.began + saves * job.save_every
    return at if at > now else at + job.save_every  # at the time of a save, rounding may yield that time again
