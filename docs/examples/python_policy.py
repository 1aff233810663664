"""A policy of one's own, run as an object."""

from dataclasses import dataclass

import shoal


@dataclass(frozen=True)
class SmallestFirst:
    """Grants the jobs that ask for the fewest GPUs first."""

    most_per_job: int = 8

    def decide(self, snapshot: shoal.Snapshot) -> shoal.Decision:
        """A verdict for every live job."""
        free = snapshot.cluster.total_gpus
        verdicts: dict[str, shoal.Grant | shoal.Refusal] = {}
        for job in sorted(snapshot.jobs.values(), key=lambda job: job.gpus):
            if job.gpus <= min(free, self.most_per_job):
                free -= job.gpus
                verdicts[job.id] = shoal.Grant(job.gpus)
            else:
                verdicts[job.id] = shoal.Refusal(shoal.in_words(f"waits: {free} GPUs are free, {job.gpus} are needed"))
        return shoal.Decision(verdicts)


for policy in ("fifo", SmallestFirst()):
    summary = shoal.simulate(policy, "docs/examples/jobs.csv", "gpu:1x8").summary
    print(f"{summary['policy']}: {summary['avg_jct'] / 60:.1f} min on average, {summary['restarts']} restarts")

try:
    shoal.simulate("fifo", "docs/examples/jobs.csv", "gpu:1x8", sed=1)
except shoal.InputError as error:
    print(error)
