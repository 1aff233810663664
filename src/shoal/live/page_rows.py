"""Rows that pages of a live cluster show beside those of the command line."""

import threading
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass

from shoal.core.units import JobId, TenantId
from shoal.live.accounts import Account, Accounts
from shoal.live.fairness import fairness_rows
from shoal.live.training_figures import TrainingFigures
from shoal.live.views import ClusterViews
from shoal.wire.decision_messages import DecisionMove, DecisionRow
from shoal.wire.messages import JobRow
from shoal.wire.training_messages import TrainingPoint
from shoal.wire.watch_messages import FairnessRow, SeatRow


@dataclass(frozen=True, slots=True)
class PageRows:
    """Reads the accounts under their lock; ``views`` makes the views of a tenant."""

    accounts: Accounts
    lock: threading.RLock
    views: Callable[[TenantId | None], ClusterViews]
    figures: TrainingFigures
    account: Callable[[JobId, TenantId | None], Account]
    """Returns a job that a tenant may see; ``LookupError`` if there is none."""

    def seats(self, tenant: TenantId | None) -> list[SeatRow]:
        """Return which job held which GPUs when."""
        with self.lock:
            return self.views(tenant).seat_spans()

    def changed_jobs(self, tenant: TenantId | None, since: int) -> tuple[int, list[JobRow] | None, list[JobId]]:
        """Return the number of the last change, the live jobs that changed after change ``since``, and ids that ended.

        None in place of the jobs says that any may have changed.
        """
        number, changed = self.accounts.changes.since(since)
        if changed is None:
            return number, None, []
        with self.lock:
            live, views = self.accounts.live, self.views(tenant)
            found = [copy(live[job]) for job, _ in changed if job in live]
            ended = [id for job, id in changed if job not in live]
        return number, views.jobs([(each, None) for each in found if tenant in (None, each.spec.tenant)]), ended

    def fairness(self, tenant: TenantId | None) -> list[FairnessRow]:
        """Return how tenants and their apps fare now, as of the last decision."""
        with self.lock:
            views = self.views(tenant)
        return [] if views.last is None else fairness_rows(views.last.snapshot, views.now, tenant)

    def training(self, job: JobId, tenant: TenantId | None) -> list[TrainingPoint]:
        """Return the figures of a job's training, in order of time."""
        return self.figures.of(self.account(job, tenant).number)

    def decisions(
        self, tenant: TenantId | None, before: int | None = None, job: JobId | None = None, limit: int = 50
    ) -> list[DecisionRow]:
        """Return the latest decisions that moved jobs the tenant may see, or this ``job``, the latest first."""
        found: list[DecisionRow] = []
        with self.lock:
            logged, epoch = self.accounts.decisions.moved(before), self.views(tenant).epoch
            for each in logged:
                seen = [DecisionMove(*move) for move in each.moves if tenant in (None, move[2])]
                if (seen and job is None) or any(move.job == job for move in seen):
                    foreign = len(each.moves) - len(seen)
                    found.append(DecisionRow(number=each.number, at=epoch + each.at, moves=seen, foreign=foreign))
                    if len(found) == limit:
                        break
        return found
