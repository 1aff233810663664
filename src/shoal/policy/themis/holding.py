"""An app's GPUs before an auction, and an auction's invitation."""

from dataclasses import dataclass

from shoal.core.arrays import Int64s
from shoal.perf.app_valuation import Use
from shoal.policy.themis.protocol import Seats


@dataclass(frozen=True, slots=True)
class Invitation:
    """An auction's invitation: number of bidders, their lowest ρ, GPUs on offer."""

    bidders: int
    rho: float
    gpus: int


@dataclass(frozen=True, slots=True, eq=False)
class Holding:
    """An app's GPUs of one kind before an auction: its jobs in order, how they can use GPUs, and those kept by lease.

    ``counts`` are the GPUs kept by job, ``reserved`` those kept beside them for the app's next phase; ``spare`` seats
    are kept for jobs that start now.
    """

    jobs: list[int]
    use: Use
    kept: int
    counts: Int64s
    reserved: int = 0
    spare: Seats = ()
