"""The protocols of the ring: the methods that the loop requires of each exchangeable part.

The loop asks a ``Backend`` for events, records them in a ``Journal``, freezes a snapshot whose ``perf`` is a
``PerfModel``, and passes it through a ``Policy``, a ``Placer`` and a ``MovePlanner`` to commands for the backend.
All but the backend and the journal must be pure: equal arguments give equal results, since replay calls them again.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from shoal.core.arrays import Floats
from shoal.core.bids import AppStanding
from shoal.core.commands import Command, Decided
from shoal.core.decision import Decision, Seating, Verdicts
from shoal.core.events import EventBatch
from shoal.core.goodput import GoodputReport
from shoal.core.job import BatchSetting, JobSpec
from shoal.core.snapshot import Estimate, JobView, Snapshot
from shoal.core.topology import Placement, Topology
from shoal.core.units import Seconds


class Policy(Protocol):
    """Decides how many GPUs each job gets.

    A policy is a pure function of the snapshot: no clock, no I/O, randomness only from ``snapshot.seed``. Values that
    its next decision needs are returned as ``carry`` and are then in ``snapshot.carry``, which is None at first.
    """

    def decide(self, snapshot: Snapshot) -> Decision:
        """Return a verdict for every live job, and a time of review later than ``snapshot.now``."""
        ...


@runtime_checkable
class Auctions(Protocol):
    """A policy that auctions GPUs among apps and accepts bids from them."""

    def standing(self, snapshot: Snapshot, app: int) -> AppStanding:
        """Return an app's standing before the next auction; ``snapshot.carry`` is from the last decision."""
        ...


class Placer(Protocol):
    """Turns granted GPU counts into seats on nodes.

    Seats never exceed what is free once the jobs that leave have left, and never include a node that is down. A job
    whose grant equals what it holds keeps its seats, unless the placer must move it to seat another.
    """

    def place(self, snapshot: Snapshot, verdicts: Verdicts) -> Seating:
        """Return the seats that change; a grant that cannot be seated is overruled, with the reason."""
        ...


class MovePlanner(Protocol):
    """Turns a seating into commands."""

    def plan(self, snapshot: Snapshot, verdicts: Verdicts, seating: Seating) -> tuple[Command, ...]:
        """Return commands in an order in which seats are free before they are taken."""
        ...


class PerfModel(Protocol):
    """Predicts how fast a job would run. Rates are progress per second, in the unit of the job's declared work."""

    def rate(self, job: JobView, placement: Placement, batch: BatchSetting | None = None) -> Estimate:
        """Return the rate on exactly these seats."""
        ...

    def speeds(self, spec: JobSpec, batch_size: int | None = None) -> Floats:
        """Return, by kind, the rate of the requested gang on its best seats; 0 where the job cannot run.

        ``batch_size`` is by default the declared one.
        """
        ...

    def curve(self, job: JobView, kind: str) -> Floats:
        """Return the rate on a kind by number of GPUs, from 0 to the job's most, on the best seats.

        The curve may depend only on the job's specification, batch size and measurements, by which callers cache it.
        """
        ...

    def colocated(self, a: JobView, b: JobView) -> tuple[float, float]:
        """Return the fractions of their rates that two jobs keep when they share GPUs."""
        ...

    def goodput(self, job: JobView) -> GoodputReport | None:
        """Return how the job's goodput depends on GPUs and batch size, or None if that is unknown."""
        ...

    def on(self, cluster: Topology) -> "PerfModel":
        """Return the model for a cluster that nodes have joined or left."""
        ...


@runtime_checkable
class LearnsOfPairs(Protocol):
    """A performance model that predicts which jobs fit on the same GPUs, and can be corrected.

    ``unfit`` are the pairs of types (model and batch size) that ``parted`` has added, each in both orders.
    """

    unfit: frozenset[tuple[tuple[str, int], tuple[str, int]]]

    def parted(self, a: JobSpec, a_batch: int | None, b: JobSpec, b_batch: int | None) -> PerfModel:
        """Return a model that also knows that these two jobs, at these batch sizes, do not fit on the same GPUs."""
        ...


class Backend(Protocol):
    """The cluster: simulated (``sim.backend``) or real (``live.backend``).

    Events arrive in order of time, each once. An event carries the incarnation it is about; the state ignores those of
    an earlier incarnation, so a backend may report an event late but must never change the incarnation in it.
    """

    def wait(self, until: Seconds) -> EventBatch:
        """Block, or advance simulated time, until something urgent happens, and no later than ``until``.

        The batch's ``now`` is never earlier than that of the batch before.
        """
        ...

    def send(self, commands: Sequence[Command]) -> None:
        """Begin to carry out commands, in order; the same command sent again has no effect."""
        ...


class Journal(Protocol):
    """Stores the records of a run, in order; reading returns exactly what was recorded."""

    def record_events(self, batch: EventBatch) -> None:
        """Append a batch of events, before the state folds it."""
        ...

    def record_decision(self, decided: Decided) -> None:
        """Append a decision, before its commands are sent."""
        ...
