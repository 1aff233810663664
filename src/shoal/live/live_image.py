"""Images of the live side of a control plane: the accounts of live jobs, totals, and the runs to resume."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_type_hints

import msgspec

from shoal.core.commands import Resize, Start
from shoal.core.units import JobNumber, Seconds, TenantId
from shoal.engine.state_image import UnreadableBase
from shoal.live.accounts import Account, Accounts
from shoal.live.live_job import LiveJob
from shoal.live.recovery import RecoveredRuns, UnfinishedRun

_VERSION = b"\x01"
_TRANSIENT = {"end", "ended", "profile", "profiled_at", "gangs", "places"}
"""Fields of a live job that no journal leaves behind."""

_APART = {"nodes", "accounts", "numbers", "keys", "live", "placed", "runs", "changes", "decisions"}
"""Fields of the accounts that are not totals."""

_SEPARATE = {"jobs", "runs"}


@dataclass(frozen=True, slots=True)
class LiveImage:
    """Accounts of live jobs, totals over all jobs, keys, and the fields of ``RecoveredRuns``, as plain values."""

    accounts: list[Account]
    totals: dict[str, Any]
    keys: list[tuple[TenantId, str, str]]
    jobs: list[tuple[JobNumber, dict[str, Any]]] = field(default_factory=list)
    starts: list[tuple[Start, bool, bool]] = field(default_factory=list)
    resizes: list[tuple[Resize, bool, bool]] = field(default_factory=list)
    recovery: dict[str, Any] = field(default_factory=dict)
    turns: list[tuple[JobNumber, int, int, Seconds | None]] = field(default_factory=list)


def encode_live(accounts: Accounts) -> bytes:
    """Return the image of the live jobs and the totals as compressed bytes."""
    runs = accounts.runs
    unfinished = [(run.command, run.started, run.stopping) for run in runs.runs.values()]
    image = LiveImage(
        accounts=list(accounts.live.values()),
        totals={f.name: getattr(accounts, f.name) for f in fields(Accounts) if f.name not in _APART},
        # Not all keys: those of ended jobs are stored with them, and a submission that waits is not in the journal yet.
        keys=[(a.spec.tenant, a.launch.key, a.spec.id) for a in accounts.live.values() if a.launch.key],
        jobs=[(n, {f.name: getattr(job, f.name) for f in _KEPT}) for n, job in runs.jobs.items()],
        starts=[run for run in unfinished if isinstance(run[0], Start)],  # type: ignore[misc]
        resizes=[run for run in unfinished if isinstance(run[0], Resize)],  # type: ignore[misc]
        turns=[(number, run.turn, run.turned, run.limit_left) for number, run in runs.runs.items() if run.turn],
        recovery={f.name: getattr(runs, f.name) for f in fields(RecoveredRuns) if f.name not in _SEPARATE},
    )
    return _VERSION + zlib.compress(msgspec.msgpack.encode(image), 1)


def restore_live(accounts: Accounts, data: bytes) -> None:
    """Restore empty accounts from their image; ``UnreadableBase`` if another version of Shoal wrote it."""
    if data[:1] != _VERSION:
        raise UnreadableBase(f"the base of this segment cannot be read: it has version {data[:1].hex() or 'none'}")
    try:
        image = msgspec.msgpack.decode(zlib.decompress(data[1:]), type=LiveImage)
        hints = get_type_hints(Accounts)
        for name, value in image.totals.items():
            setattr(accounts, name, _convert(value, hints[name]))
        for account in image.accounts:
            accounts.accounts[account.number] = accounts.live[account.number] = account
            accounts.numbers[account.spec.id] = account.number
            if account.placement is not None:
                accounts.placed[account.number] = account
        accounts.keys = {(tenant, key): job for tenant, key, job in image.keys}
        accounts.runs = _recovered(image, accounts.live)
    except (zlib.error, msgspec.MsgspecError, TypeError) as error:
        raise UnreadableBase(f"the base of this segment cannot be read: {error}") from error


def _recovered(image: LiveImage, accounts: Mapping[JobNumber, Account]) -> RecoveredRuns:
    hints = get_type_hints(RecoveredRuns)
    runs = RecoveredRuns(**{name: _convert(value, hints[name]) for name, value in image.recovery.items()})
    hints = get_type_hints(LiveJob)
    for number, values in image.jobs:
        launch = accounts[number].launch if number in accounts else _convert(values["launch"], hints["launch"])
        others = {name: _convert(value, hints[name]) for name, value in values.items() if name != "launch"}
        runs.jobs[number] = LiveJob(**others, launch=launch)
    unfinished: list[tuple[Start | Resize, bool, bool]] = [*image.starts, *image.resizes]
    for command, started, stopping in unfinished:
        runs.runs[command.job] = UnfinishedRun(command, started, stopping)
    for number, turn, turned, left in image.turns:
        run = runs.runs[number]
        run.turn, run.turned, run.limit_left = turn, turned, left
    return runs


def _convert(value: Any, hint: Any) -> Any:
    plain = value is None or isinstance(value, bool | int | float)  # most are, of ten thousands of jobs
    return value if plain else msgspec.convert(value, hint, str_keys=False)


_KEPT = [f for f in fields(LiveJob) if f.name not in _TRANSIENT]
