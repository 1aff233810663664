"""Admission control: apps wait outside the auctions while the GPUs requested by those inside reach a limit.

ρ ≤ 1 for every app presumes a limit on contention. The paper suggests to reject apps; here they wait in order of
arrival, since a scheduler cannot take a submission back. While an app waits it does not count among the apps that share
the cluster, and its ρ counts from its admission.

References: Themis (NSDI '20) §3.2, footnote 2.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from shoal.core.arrays import Int64s
from shoal.core.snapshot import Snapshot
from shoal.policy.themis.carry import ThemisCarry


@dataclass(frozen=True)
class AppAdmission:
    """The apps of a snapshot (``every``: positions of jobs by app) and which of them are admitted.

    ``limit`` is the most GPUs that admitted apps may request together, over the GPUs of the cluster; infinite for none.
    """

    snapshot: Snapshot
    every: Mapping[int, Int64s]
    before: ThemisCarry
    limit: float

    @cached_property
    def most(self) -> float:
        """The most GPUs that admitted apps may request together."""
        return self.limit * self.snapshot.cluster.total_gpus

    @cached_property
    def members(self) -> dict[int, Int64s]:
        """The admitted apps: those admitted before or on GPUs, then others in order of arrival up to the limit.

        The first that would exceed the limit keeps those after it waiting. An app that exceeds it alone is admitted
        when no other requests anything.
        """
        if self.limit == inf:
            return dict(self.every)
        held = self.snapshot.columns.held
        inside = {app for app, jobs in self.every.items() if app in self.before.apps or held[jobs].any()}
        total = sum(self.requested(app) for app in inside)
        arrived = self.snapshot.columns.submitted
        for app in sorted(self.every.keys() - inside, key=lambda app: (float(arrived[self.every[app]].min()), app)):
            request = self.requested(app)
            if request and total and total + request > self.most:
                break
            inside.add(app)
            total += request
        return {app: jobs for app, jobs in self.every.items() if app in inside}

    @cached_property
    def total(self) -> int:
        """The GPUs that the admitted apps request together."""
        return sum(self.requested(app) for app in self.members)

    def requested(self, app: int) -> int:
        """Return the GPUs that an app's live jobs request together, without jobs that cannot run on this cluster."""
        jobs = self.every[app]
        return int(np.where(self.snapshot.possible[jobs], self.snapshot.columns.gpus[jobs], 0).sum())

    def waited(self, app: int) -> bool:
        """Whether an app was seen by an earlier decision that did not admit it."""
        known = self.before.live > 0 and app not in self.before.apps
        return known and bool(np.isin(self.snapshot.columns.rows[self.every[app]], self.before.rows).any())
