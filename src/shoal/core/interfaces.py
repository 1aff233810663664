"""The seams of the ring: what a policy, a placer, a mechanism and a backend each promise the loop."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from shoal.core.bids import AppStanding
from shoal.core.commands import Command
from shoal.core.decision import Decision, Seating, Verdicts
from shoal.core.events import EventBatch
from shoal.core.snapshot import Snapshot
from shoal.core.units import Seconds


class Policy(Protocol):
    """Who gets how much: a pure function of the snapshot; what it must remember it returns as ``carry``."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """A verdict for every live job."""
        ...


@runtime_checkable
class Auctions(Protocol):
    """A policy that auctions GPUs among apps, and lets them speak for themselves."""

    def standing(self, snapshot: Snapshot, app: int) -> AppStanding:
        """How the app of this number stands before the next auction; ``carry`` is of the last."""
        ...


class Placer(Protocol):
    """Where they sit: turns counts into seats, moving nobody whose grant did not change."""

    def place(self, snapshot: Snapshot, verdicts: Verdicts) -> Seating:
        """Seats for what changes; a grant that cannot be seated is overruled with the reason."""
        ...


class MovePlanner(Protocol):
    """How to get there: the commands that lead from the seats held to the seats given."""

    def plan(self, snapshot: Snapshot, verdicts: Verdicts, seating: Seating) -> tuple[Command, ...]:
        """Commands in the order they must be carried out."""
        ...


class Backend(Protocol):
    """The world: a heap of things to come, or machines."""

    def wait(self, until: Seconds) -> EventBatch:
        """Sleep, or jump, until something loud happens, and no later than ``until``."""
        ...

    def send(self, commands: Sequence[Command]) -> None:
        """Carry these out; repeating a command is harmless."""
        ...
