"""Conditions of a submitted job, checked at admission: the jobs it waits for, the signal before its time limit."""

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from shoal.core.errors import InputError, nearest
from shoal.core.job import Conditions, JobSpec, Launch, WarningSignal
from shoal.core.lifecycle import JobState
from shoal.core.units import JobId, TenantId
from shoal.live.accounts import Account, Accounts
from shoal.wire.messages import Dependency, Submission

_MOST_SINGLETON = 1000
"""Most live jobs of one name that a singleton waits for."""

_ENDS = {JobState.COMPLETED: "has completed", JobState.FAILED: "has failed", JobState.CANCELLED: "was cancelled"}
_SIGNALS = {number.name.removeprefix("SIG"): number.value for number in signal.Signals}


@dataclass(frozen=True, slots=True)
class Resolver:
    """Finds the jobs that the submissions of one request name.

    ``ended`` returns the account of a job that is no longer in memory. Jobs of ``tenant`` alone may be named, or any if
    it is None. ``epoch`` is the Unix time of the ring's time 0.
    """

    accounts: Accounts
    ended: Callable[[JobId, TenantId | None], Account | None]
    tenant: TenantId | None
    epoch: float
    batch: dict[tuple[TenantId, str], list[JobId]] = field(default_factory=dict)
    """The jobs of this request admitted so far, by tenant and name."""

    def admitted(self, job: tuple[JobSpec, Launch], wanted: Submission) -> tuple[JobSpec, Launch]:
        """Return an admitted job with its conditions.

        Dependencies that hold already are left out; one that can never hold is refused.
        """
        spec, launch = job
        if wanted.after or wanted.singleton or wanted.begin or wanted.hold or wanted.array or wanted.most_at_once:
            spec = replace(spec, conditions=self._conditions(wanted, spec.tenant))
        self.batch.setdefault((spec.tenant, wanted.name), []).append(spec.id)
        return spec, launch

    def _conditions(self, wanted: Submission, owner: TenantId) -> Conditions:
        named = (self._resolve(one, self.batch.get((owner, one.job), [])) for one in wanted.after or ())
        after = dict(pair for pair in named if pair is not None)
        if wanted.singleton:
            after |= dict.fromkeys(self._of_name(wanted.name, owner), "any")
        if wanted.most_at_once is not None and wanted.array is None:
            raise InputError("most_at_once", wanted.most_at_once, "needs array, the name that the jobs share")
        begin = None if wanted.begin is None else wanted.begin - self.epoch
        return Conditions(tuple(after.items()), begin, wanted.hold, wanted.array, wanted.most_at_once)

    def _resolve(self, wanted: Dependency, named: Sequence[JobId]) -> tuple[JobId, str] | None:
        """Return the condition with the job's id; None if it is met. ``named``: jobs of this request by that name."""
        if len(named) > 1:
            raise InputError("after", wanted.job, f"names {len(named)} jobs of this request; give each its own name")
        if named:
            return named[0], wanted.when
        number = self.accounts.numbers.get(wanted.job)
        account = self.ended(wanted.job, self.tenant) if number is None else self.accounts.accounts.get(number)
        if account is None or self.tenant not in (None, account.spec.tenant):
            raise InputError("after", wanted.job, "there is no such job; name the id of a job submitted before")
        if account.live:
            return None if wanted.when == "start" and account.started is not None else (account.spec.id, wanted.when)
        met = wanted.when in ("any", "start") or (account.state is JobState.COMPLETED) == (wanted.when == "ok")
        if met:
            return None
        only = "completed" if wanted.when == "ok" else "failed"
        raise InputError("after", wanted.job, f"{_ENDS[account.state]}, and this job would start only after it {only}")

    def _of_name(self, name: str, owner: TenantId) -> list[JobId]:
        """Return the live jobs of this name and tenant, and those that come earlier in this request."""
        live = self.accounts.live.values()
        found = [job.spec.id for job in live if job.launch.name == name and job.spec.tenant == owner]
        found += self.batch.get((owner, name), [])
        if len(found) > _MOST_SINGLETON:
            hint = f"{len(found):,} live jobs have this name; at most {_MOST_SINGLETON:,} can be waited for"
            raise InputError("singleton", name, hint)
        return found


def warning_signal(wanted: Submission) -> WarningSignal | None:
    """Return the signal before the time limit; refused without a limit, or if the system has no such signal."""
    asked = wanted.signal
    if asked is None:
        return None
    if wanted.time is None:
        raise InputError("signal", asked.signal, "needs time, the limit that it warns of")
    name = str(asked.signal).upper().removeprefix("SIG")
    number = int(name) if name.isdigit() else _SIGNALS.get(name, 0)
    if not 1 <= number < signal.NSIG:
        raise InputError("signal", asked.signal, nearest(name, _SIGNALS))
    return WarningSignal(number, asked.before, asked.main)
