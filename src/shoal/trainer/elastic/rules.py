"""Pure rules by which workers agree: the same inputs give the same answer on every worker. No torch.

References: Hwang et al., Elastic Resource Sharing for Distributed Deep Learning (AFS and CoDDL), NSDI 2021, §4.3.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

NOTHING = -1
"""Steps held by a worker that has just started and has no training state."""

STOP = -1
"""Announced by a worker that was asked to stop, in place of the generation it is ready for."""

_MOST_KEPT = 4


@dataclass(frozen=True, slots=True)
class Readiness:
    """Announcement of a member before a generation's group is built.

    ``kept`` is the generation for which it already built a group of exactly these members, 0 if none; ``stepping`` says
    whether it is training in another group meanwhile.
    """

    kept: int
    stepping: bool

    def to_text(self) -> str:
        """Text form for the store."""
        return f"{self.kept} {int(self.stepping)}"

    @classmethod
    def from_text(cls, text: str) -> "Readiness":
        """Parse the text form."""
        kept, stepping = text.split()
        return cls(int(kept), stepping == "1")


def agreed_generation(ready: Sequence[int], current: int) -> int | None:
    """The newer generation that every rank is ready for, None if there is none."""
    first = ready[0]
    return first if first > current and all(generation == first for generation in ready) else None


def stop_requested(words: Sequence[int]) -> bool:
    """Whether any rank announced a stop; all ranks see it in the same step."""
    return STOP in words


def reusable(members: Iterable[Readiness]) -> int:
    """The generation of a kept group that every member still has; 0 if a group must be built."""
    groups = {member.kept for member in members}
    return groups.pop() if len(groups) == 1 else 0


def donors(held: Sequence[int]) -> Mapping[int, int]:
    """Return, for each rank that is behind, the rank that sends it its training state.

    Ranks with the most steps hold the right state, since a finished step used the gradients of all; they share the
    sending. If no rank holds any steps, all take the initial state of rank 0.
    """
    most = max(held)
    if most == NOTHING:
        return dict.fromkeys(range(1, len(held)), 0)
    holders = [rank for rank, steps in enumerate(held) if steps == most]
    behind = [rank for rank, steps in enumerate(held) if steps < most]
    return {rank: holders[place % len(holders)] for place, rank in enumerate(behind)}


def worth_keeping(groups: Sequence[tuple[int, ...]], members: tuple[int, ...]) -> list[int]:
    """Indices of the groups (oldest first, given by members) that may be used again by these members.

    Workers never return, so a group with a missing worker is useless. At most the newest few are kept.
    """
    now = set(members)
    useful = [place for place, group in enumerate(groups) if set(group) < now]
    return useful[-_MOST_KEPT:]
