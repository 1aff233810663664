"""Sentences on ranks that failed: where, and by which exit status or signal."""

from collections.abc import Sequence

from shoal.wire.messages import RankExit

_SIGNALS = {
    6: "it aborted",
    9: "it was killed: out of memory?",
    11: "it broke memory protection",
    15: "it was terminated",
}
_STATUSES = {126: "a shell could not execute the program", 127: "a shell found no such program"}


def failed_status(exits: Sequence[RankExit]) -> int | None:
    """Return the status of the first rank that failed; None if none did."""
    return next((rank.status for rank in exits if rank.status and not rank.warned), None)


def describe_exit(exits: Sequence[RankExit], node: str) -> str:
    """Return a sentence on the first rank that failed: where and how."""
    first = next(rank for rank in exits if rank.status and not rank.warned)
    if first.status < 0:
        hint = _SIGNALS.get(-first.status, "")
        return f"rank {first.rank} on {node} ended by signal {-first.status}{f' ({hint})' if hint else ''}"
    hint = _STATUSES.get(first.status, "")
    return f"rank {first.rank} on {node} exited with status {first.status}{f' ({hint})' if hint else ''}"
