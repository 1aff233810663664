"""The decisions of a keeper, without a clock, a process or a file: times and ends of ranks go in, deadlines come out.

Times are monotonic seconds. ``why`` is set once, by the first reason to stop, and never again; it stays empty only if
every rank ended by itself.
"""

from collections.abc import Iterable
from math import inf

ORPHAN_GRACE_SECONDS = 1.0
"""Seconds ranks have to save after their agent has died."""


class KeeperState:
    """The lease, the ranks that have not ended, and when they are killed."""

    def __init__(
        self,
        lease: float,
        grace: float,
        ranks: Iterable[int],
        *,
        apart: bool = False,
        signal_after: float | None = None,
    ) -> None:
        self.lease, self.grace, self.apart = lease, grace, apart
        self.ranks = set(ranks)
        self.why = ""
        self.kill_at: float | None = None
        self._signal_after = signal_after
        self._signal_at = inf
        """When the signal before the time limit is due."""
        self.suspended = False
        """Whether its processes are suspended, or about to be or no longer to be."""
        self._suspended_at = 0.0
        self.releases: dict[int, float] = {}
        """By rank, when it is killed if it has not left."""

    @property
    def warned(self) -> bool:
        """Whether the ranks were ordered to leave."""
        return self.kill_at is not None

    def begin(self, now: float) -> bool:
        """Return whether the ranks may start; once the lease has passed they never do."""
        if now >= self.lease:
            self.fail(now, "lease")
        return not self.warned

    def started(self, now: float) -> None:
        """Note that all ranks are up: the signal before their time limit is due ``signal_after`` seconds from now."""
        if self._signal_after is not None:
            self._signal_at = now + self._signal_after

    def signal_due(self, now: float) -> bool:
        """Return, once, that the signal before the time limit is due; never if the ranks were ordered to leave."""
        due = now >= self._signal_at and not self.warned and not self.suspended
        if due:
            self._signal_at = inf
        return due

    def renew(self, lease: float) -> None:
        """Prolong the lease to this time."""
        self.lease = max(self.lease, lease)

    def fail(self, now: float, why: str) -> None:
        """Record that the ranks could not be started: any that run are killed at once."""
        self.why = self.why or why
        self.kill_at = now if self.kill_at is None else min(self.kill_at, now)

    def suspend(self, now: float) -> None:
        """Note that the ranks are to be suspended; from now on time does not count towards their time limit."""
        self.suspended, self._suspended_at = True, now

    def go_on(self, now: float) -> None:
        """Note that the ranks run: they were resumed, or could not be suspended."""
        self.suspended = False
        self._signal_at += now - self._suspended_at

    def stop(self, now: float, grace: float, why: str) -> bool:
        """Plan to kill the ranks after ``grace`` seconds, suspended ones at once; return whether to warn them now."""
        grace = 0.0 if self.suspended else grace
        if self.kill_at is not None:
            self.kill_at = min(self.kill_at, now + grace)
            return False
        self.kill_at = now + grace
        # Ranks that have all ended by themselves were not stopped, even if processes of them are left.
        if self.ranks:
            self.why = why
        return True

    def expire(self, now: float) -> bool:
        """Stop the ranks if the lease has passed; return whether they must be warned now."""
        return now >= self.lease and self.stop(now, self.grace, "lease")

    def orphan(self, now: float) -> bool:
        """Stop the ranks because the agent has died; return whether they must be warned now.

        Suspended ones stay until their lease ends: the node's next agent may take them over.
        """
        return not self.suspended and self.stop(now, min(self.grace, ORPHAN_GRACE_SECONDS), "agent")

    def release(self, rank: int, now: float, grace: float) -> None:
        """Plan to kill a rank that should leave by itself within ``grace`` seconds."""
        if rank in self.ranks:
            self.releases.setdefault(rank, now + grace)

    def overdue(self, now: float) -> list[int]:
        """Return the ranks that should have left by now, each once."""
        late = [rank for rank, at in self.releases.items() if now >= at]
        for rank in late:
            del self.releases[rank]
        return late

    def ended(self, rank: int, status: int, now: float) -> bool:
        """Record that a rank ended; return whether the others must be warned now."""
        self.ranks.discard(rank)
        self.releases.pop(rank, None)
        return status != 0 and not self.apart and self.stop(now, self.grace, "rank")

    def must_kill(self, now: float) -> bool:
        """Return whether the time to leave is over."""
        return self.kill_at is not None and now >= self.kill_at

    def next_deadline(self) -> float:
        """Return when the keeper must act next if nothing happens before."""
        if self.kill_at is not None:
            return self.kill_at
        return min([self.lease, inf if self.suspended else self._signal_at, *self.releases.values()])
