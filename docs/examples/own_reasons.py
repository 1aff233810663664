"""A policy with a reason and a constant of its own: wide jobs start only on an empty cluster."""

from dataclasses import dataclass

from shoal.core.decision import Decision, Grant, Refusal, Verdict
from shoal.core.reasons import FITS, NO_ROOM, Reason, ReasonTemplate
from shoal.core.snapshot import Snapshot
from shoal.policy.tuning import constant
from shoal.testing.builders import simulate
from shoal.workload.files import read_workload

TOO_WIDE = ReasonTemplate(
    64,
    "TOO_WIDE",
    "waits: needs {GPUs it needs:,.0f} GPUs; jobs of more than {GPUs of a narrow job:,.0f} start on an empty "
    "cluster ({running jobs:,.0f} running)",
)


@dataclass(frozen=True, slots=True)
class WideTuning:
    narrow: int = constant(4, "most GPUs of a job that may start beside others")


@dataclass(frozen=True, slots=True)
class WideAlone:
    """First come, first served; a wide job waits for an empty cluster."""

    reasons = (TOO_WIDE,)
    tuning = WideTuning()

    def decide(self, snapshot: Snapshot) -> Decision:
        """Grants or refuses each job its whole gang, in order of arrival."""
        total = free = snapshot.cluster.total_gpus
        running = sum(job.held > 0 for job in snapshot.jobs.values())
        verdicts: dict[str, Verdict] = {}
        for job in sorted(snapshot.jobs.values(), key=lambda job: job.held == 0):
            wide = job.gpus > self.tuning.narrow and not job.held
            if wide and running:
                verdicts[job.id] = Refusal(Reason(TOO_WIDE, (job.gpus, self.tuning.narrow, running)))
            elif job.gpus > free:
                verdicts[job.id] = Refusal(Reason(NO_ROOM, (job.gpus, free)))
            else:
                free -= job.gpus
                verdicts[job.id] = Grant(job.gpus, reason=Reason(FITS, (total - free, total)))
        return Decision(verdicts)


if __name__ == "__main__":
    jobs = read_workload("docs/examples/jobs.csv").jobs
    for at, sentence in simulate(WideAlone(), jobs, "gpu:2x4").story("wide"):
        print(f"t = {at:>6,.0f} s  {sentence}")
