"""Requests on submitted jobs: hold, release, requeue; change the priority of one or many; cancel many."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from shoal.core.errors import InputError
from shoal.core.events import PriorityChanged
from shoal.core.lifecycle import JobState
from shoal.core.units import JobId, Seconds, TenantId
from shoal.live.accounts import Account, Accounts
from shoal.live.backend import LiveBackend
from shoal.live.journal_disk import JournalDisk
from shoal.live.runs import RunRegistry
from shoal.wire.messages import CancelMany, PrioritiseMany

_RUNNING = (JobState.STARTING, JobState.RUNNING)


@dataclass(frozen=True, slots=True)
class JobVerbs:
    """Requests on jobs of a control plane; ``find`` returns the account of a job that a tenant may see.

    Each future resolves when the change is durable. ``by`` is the person who asks.
    """

    backend: LiveBackend
    accounts: Accounts
    lock: threading.RLock
    disk: JournalDisk
    find: Callable[[JobId, TenantId | None], Account]

    def hold(self, job: JobId, tenant: TenantId | None, by: str) -> "Future[None]":
        """Hold a job: it is not started until it is released; a running job is not stopped.

        Without a tenant the hold is an administrator's: only an administrator may release the job.
        """
        number = self._live(job, tenant).number

        def change(runs: RunRegistry, now: Seconds) -> None:
            runs.events += runs.held.hold(number, now, by, admin=tenant is None)

        return self.backend.change(change)

    def release(self, job: JobId, tenant: TenantId | None, by: str) -> "Future[None]":
        """Release a held job."""
        account = self._live(job, tenant)
        if not account.held_by:
            raise InputError("job", job, "is not held; `shoal why` says what it waits for")
        if account.held_by_admin and tenant is not None:
            raise InputError("job", job, f"is held by the administrator {account.held_by}: ask them to release it")

        def change(runs: RunRegistry, now: Seconds) -> None:
            runs.events += runs.held.lift(account.number, now, by)
            runs.release_waiting(now)

        return self.backend.change(change)

    def requeue(self, job: JobId, tenant: TenantId | None, by: str) -> "Future[None]":
        """Stop a running job and put it back into the queue; what it has not saved is lost."""
        account = self._live(job, tenant)
        if account.state not in _RUNNING:
            raise InputError(
                "job", job, f"does not run ({account.state.name.lower()}); only running jobs can be put back"
            )
        return self.backend.change(lambda runs, now: runs.requeue(account.number, now, by))

    def prioritise(self, job: JobId, priority: int, tenant: TenantId | None, by: str) -> "Future[None]":
        """Change a job's priority among the jobs of its tenant."""
        number = self._live(job, tenant).number

        def change(runs: RunRegistry, now: Seconds) -> None:
            if not runs.over(number):
                runs.events.append(PriorityChanged(now, number, priority, by))

        return self.backend.change(change)

    def prioritise_many(
        self, which: PrioritiseMany, tenant: TenantId | None, by: str
    ) -> "tuple[list[JobId], Future[None]]":
        """Change the priority of the live jobs that fit and that the tenant may see (None: any); return their ids."""
        found = self._found(which, tenant)

        def change(runs: RunRegistry, now: Seconds) -> None:
            live = (account.number for account in found if not runs.over(account.number))
            runs.events += [PriorityChanged(now, number, which.priority, by) for number in live]

        return [account.spec.id for account in found], self.backend.change(change)

    def cancel_many(self, which: CancelMany, tenant: TenantId | None) -> "tuple[list[JobId], Future[None]]":
        """Cancel the live jobs that fit and that the tenant may see (None: any); return their ids."""
        found = self._found(which, tenant)

        def change(runs: RunRegistry, now: Seconds) -> None:
            for account in found:
                runs.cancel(account.number, now, force=which.force)

        return [account.spec.id for account in found], self.backend.change(change)

    def _found(self, which: CancelMany | PrioritiseMany, tenant: TenantId | None) -> list[Account]:
        self.disk.check_writable()
        with self.lock:
            return [account for account in self.accounts.live.values() if _fits(account, which, tenant)]

    def _live(self, job: JobId, tenant: TenantId | None) -> Account:
        account = self.find(job, tenant)
        self.disk.check()
        if account.state is JobState.CANCELLING:
            raise InputError("job", job, "is being cancelled")
        if not account.live:
            raise InputError("job", job, f"has ended ({account.state.name.lower()}); only live jobs can be changed")
        return account


def _fits(account: Account, which: CancelMany | PrioritiseMany, tenant: TenantId | None) -> bool:
    conditions = account.spec.conditions
    running = account.state in (*_RUNNING, JobState.STOPPING)
    return (
        account.state is not JobState.CANCELLING
        and tenant in (None, account.spec.tenant)
        and which.tenant in (None, account.spec.tenant)
        and which.name in (None, account.launch.name)
        and which.array in (None, conditions and conditions.array)
        and which.state in (None, "running" if running else "pending")
    )
