"""Rules of the real code, each broken on purpose: the simulation must notice every one of them."""

from collections.abc import Callable, Mapping
from typing import Any

from shoal.core.events import JobCancelled
from shoal.engine import state
from shoal.engine.loop import keep
from shoal.live.accounts import Accounts
from shoal.live.gang import Gang, NodePhase
from shoal.live.journal_writer import JournalWriter
from shoal.live.silence import Silence

Names = Mapping[str, Mapping[str, Any]]


def _acknowledge_first(writer: JournalWriter) -> None:
    writer.backend.confirm()
    _MAKE_DURABLE(writer)


_MAKE_DURABLE = JournalWriter._make_durable


def _early_deadline(silence: Silence, agent: Any) -> float:
    return float(_QUIET_AT(silence, agent) - 1.2 * silence.lease)


_QUIET_AT = Silence.quiet_at


def _no_exits_is_success(gang: Gang, nodes: Any) -> Any:
    end = _FAILED(gang, nodes)
    ended = all(part.phase is NodePhase.ENDED for part in gang.parts.values())
    failed = any(rank.status for part in gang.parts.values() for rank in part.exits)
    return None if ended and not failed else end


_FAILED = Gang._failed


def _cancelled_keeps_seats(own: Any, event: Any) -> None:
    free, own.free_gpus = own.free_gpus, _Sieve(own.free_gpus)
    try:
        _CANCELLED(own, event)
    finally:
        own.free_gpus = free


class _Sieve:
    """Free GPUs that lose what is given back to them."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def give(self, placement: Any) -> None:
        pass


_CANCELLED = state._FOLD[JobCancelled]


def _charge_twice(accounts: Accounts, account: Any, at: float) -> None:
    before = account.gpu_seconds
    _LEAVE(accounts, account, at)
    account.gpu_seconds += account.gpu_seconds - before


_LEAVE = Accounts._leave_seats


def _forget_key(accounts: Accounts, event: Any) -> None:
    _SUBMITTED(accounts, event)
    accounts.keys.clear()


_SUBMITTED = Accounts._submitted


BREAKS: dict[str, Callable[[], Names]] = {
    "acknowledge before the commit": lambda: {
        "shoal.live.journal_writer:JournalWriter": {"_make_durable": _acknowledge_first},
    },
    "start the next incarnation before the last one ended": lambda: {
        "shoal.live.runs": {"alone": lambda *_: True},
        "shoal.agent.node_state:NodeState": {"_has_predecessor": lambda *_: False},
    },
    "count a node as lost before its lease ended": lambda: {
        "shoal.live.silence:Silence": {"quiet_at": _early_deadline},
    },
    "count a run without exits as a success": lambda: {
        "shoal.live.gang:Gang": {"_failed": _no_exits_is_success, "_all_succeeded": lambda *_, **__: True},
    },
    "lose a cancelled job's GPUs": lambda: {
        "shoal.engine.state": {"_FOLD": {**state._FOLD, JobCancelled: _cancelled_keeps_seats}},
    },
    "keep every placement because of one job": lambda: {
        "shoal.engine.guard:Guard": {
            "_after": lambda guard, error, snapshot, *parts: keep(snapshot, error, *parts[1:])
        },
    },
    "let an agent elsewhere have a node's name at once": lambda: {
        "shoal.live.registration": {"_move": lambda *_: None},
    },
    "charge twice": lambda: {"shoal.live.accounts:Accounts": {"_leave_seats": _charge_twice}},
    "forget a submission's key": lambda: {"shoal.live.accounts:Accounts": {"_submitted": _forget_key}},
}
"""By rule: the names to replace so that it is broken."""
