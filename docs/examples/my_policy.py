"""A policy of one's own: the shortest job first, until somebody has waited too long."""

from dataclasses import dataclass
from math import inf

from shoal.core.decision import Decision, Grant, Refusal, Verdict
from shoal.core.reasons import in_words
from shoal.core.snapshot import JobView, Snapshot


@dataclass(frozen=True, slots=True)
class MyPolicy:
    """Shortest remaining time first; a job that has waited ``patience`` seconds goes before all that have not."""

    patience: float = 3600.0

    def decide(self, snapshot: Snapshot) -> Decision:
        """A verdict for every live job, reviewed each minute while anybody waits."""
        kinds = snapshot.cluster.kinds
        free = dict(zip(kinds, snapshot.cluster.capacity, strict=True))
        verdicts: dict[str, Verdict] = {}
        for job in sorted(snapshot.jobs.values(), key=lambda job: self._turn(job, snapshot.now)):
            speed = dict(zip(kinds, snapshot.columns.speeds[job.position].tolist(), strict=True))
            room = [kind for kind in kinds if speed[kind] > 0 and free[kind] >= job.gpus]
            if room:
                kind = job.kind if job.kind in room else max(room, key=lambda kind: speed[kind])
                free[kind] -= job.gpus
                why = in_words(f"runs on {kind}: about {job.remaining_seconds:,.0f} s to go")
                verdicts[job.id] = Grant(job.gpus, kind, reason=why)
            else:
                left, total = max(free.values()), snapshot.cluster.total_gpus
                why = in_words(f"waits: needs {job.gpus} GPUs of one kind, {left} of {total} are left for it")
                verdicts[job.id] = Refusal(why)
        waiting = any(isinstance(verdict, Refusal) for verdict in verdicts.values())
        return Decision(verdicts, review_at=(snapshot.now // 60 + 1) * 60 if waiting else inf)

    def _turn(self, job: JobView, now: float) -> tuple[bool, float]:
        waited = now - job.spec.submitted - job.run_seconds
        late = waited >= self.patience
        return not late, job.spec.submitted if late else job.remaining_seconds
