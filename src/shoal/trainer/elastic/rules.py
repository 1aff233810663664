"""What workers conclude from what they have told each other: pure rules, the same on every worker, without torch.

Each takes the same values on every rank and gives the same answer there; that is all agreement rests on.

References: Hwang et al., Elastic Resource Sharing for Distributed Deep Learning (AFS and CoDDL), NSDI 2021, §4.3.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

NOTHING = -1
"""Steps held by a worker that has no training state worth anything: it has just started."""

STOP = -1
"""The word of a worker that was told to stop, in place of the generation it is ready for."""

_MOST_KEPT = 4


@dataclass(frozen=True, slots=True)
class Readiness:
    """What a member says before a generation's group is built: which group it has of just these members, if any
    (the generation that was built for, else 0), and whether it is training in another meanwhile."""

    kept: int
    stepping: bool

    def to_text(self) -> str:
        """As it is put in the store."""
        return f"{self.kept} {int(self.stepping)}"

    @classmethod
    def from_text(cls, text: str) -> "Readiness":
        """Read back what ``to_text`` wrote."""
        kept, stepping = text.split()
        return cls(int(kept), stepping == "1")


def agreed(ready: Sequence[int], current: int) -> int | None:
    """The generation all ranks are to switch to now: a newer one for which every one of them said it is ready."""
    first = ready[0]
    return first if first > current and all(generation == first for generation in ready) else None


def stopping(words: Sequence[int]) -> bool:
    """Whether all are to save and leave now: one of them was told so, and its word reaches all in the same step."""
    return STOP in words


def reusable(members: Iterable[Readiness]) -> int:
    """The kept group every member still has, by the generation it was built for; 0 where one has to be built."""
    groups = {member.kept for member in members}
    return groups.pop() if len(groups) == 1 else 0


def donors(held: Sequence[int]) -> Mapping[int, int]:
    """For each rank that is behind, the rank it takes its training state from.

    Whoever holds most steps is right: a step some worker has finished used the gradients of all. Those who do share
    the work. Where nobody holds anything the first rank's beginning is everybody's.
    """
    most = max(held)
    if most == NOTHING:
        return dict.fromkeys(range(1, len(held)), 0)
    holders = [rank for rank, steps in enumerate(held) if steps == most]
    behind = [rank for rank, steps in enumerate(held) if steps < most]
    return {rank: holders[place % len(holders)] for place, rank in enumerate(behind)}


def worth_keeping(groups: Sequence[tuple[int, ...]], members: tuple[int, ...]) -> list[int]:
    """Which groups, oldest first and by their members, may still be of use to these members: their places in the list.

    Workers only leave, so a group of which one is missing will never meet again. The newest few are kept.
    """
    now = set(members)
    useful = [place for place, group in enumerate(groups) if set(group) < now]
    return useful[-_MOST_KEPT:]
