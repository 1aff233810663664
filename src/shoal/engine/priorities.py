"""Priorities of a tenant's jobs, enforced on the answer of any policy.

Of one tenant's waiting jobs none starts before one of a higher priority that the cluster could run. Running jobs are
not stopped for it, and between tenants the policy and quotas decide.
"""

from dataclasses import dataclass

import numpy as np

from shoal.core.decision import Decision, Refusal, Verdict, Verdicts
from shoal.core.interfaces import Policy
from shoal.core.reasons import LOWER_PRIORITY, Reason
from shoal.core.snapshot import Snapshot
from shoal.engine.policy_answer import MOST_ASKS, ask


@dataclass(frozen=True, slots=True)
class ByPriority:
    """Asks a policy again without the jobs that it started before others of their tenant with a higher priority."""

    policy: Policy

    def decide(self, snapshot: Snapshot) -> Decision:
        """Return the policy's decision once it starts no job before one of a higher priority."""
        hidden: dict[int, Verdict] = {}
        decision, verdicts = ask(self.policy, snapshot)
        for _ in range(MOST_ASKS):
            early = _early(snapshot, verdicts, hidden)
            if not early:
                break
            hidden |= early
            decision, verdicts = ask(self.policy, snapshot, hidden)
        last = _early(snapshot, verdicts, hidden)
        return Decision(verdicts.overruled(last), decision.review_at, decision.carry)


def _early(snapshot: Snapshot, verdicts: Verdicts, hidden: dict[int, Verdict]) -> dict[int, Verdict]:
    """Return refusals of the jobs that would start before a job of their tenant with a higher priority."""
    columns, numbers = snapshot.columns, snapshot.columns.rows.tolist()
    waiting = (columns.held == 0) & snapshot.possible
    first: dict[int, tuple[int, int]] = {}  # by tenant: highest priority of a refused job, and that job
    for i in np.flatnonzero(waiting & (verdicts.gpus == 0)).tolist():
        if i not in hidden:
            tenant, priority = int(columns.tenant[i]), snapshot.priorities.get(numbers[i], 0)
            first[tenant] = max(first.get(tenant, (priority, -i)), (priority, -i))
    refusals: dict[int, Verdict] = {}
    for i in np.flatnonzero(waiting & (verdicts.gpus > 0)).tolist():
        priority, head = snapshot.priorities.get(numbers[i], 0), first.get(int(columns.tenant[i]))
        if head is not None and head[0] > priority:
            refusals[i] = Refusal(Reason(LOWER_PRIORITY, (priority, snapshot.ids[-head[1]], head[0])))
    return refusals
