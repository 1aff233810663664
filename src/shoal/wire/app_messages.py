"""Messages about the apps of searches: offers to an app, and its bids."""

from typing import Annotated

from msgspec import Meta, Struct, field

from shoal.wire.fields import Count, JobName


class AppBidMessage(Struct, forbid_unknown_fields=True, frozen=True):
    """An app's valuation of GPUs, valid while the app has exactly these jobs.

    ``rows`` are pairs, ascending: a number of GPUs held until the end, and the seconds in which the app is done with
    them. The seconds fall, at most in proportion to the GPUs. The GPUs are of the kind that the app's offer names.
    """

    jobs: Annotated[list[JobName], Meta(min_length=1, max_length=10_000)]
    rows: Annotated[list[tuple[Count, Annotated[float, Meta(gt=0, le=1e12)]]], Meta(min_length=1, max_length=4096)]


class WorkLeft(Struct, frozen=True):
    """The rest of a job of an app: the fraction of its work, and the seconds that takes.

    ``seconds[i]`` is for ``least + i`` GPUs, up to the most it can use; empty where it can use none.
    """

    id: str
    part: float
    least: int
    seconds: list[float]


class KindOffer(Struct, frozen=True):
    """GPUs of a kind that are free, or will be at the end of the next lease (``until``, Unix seconds; None: now).

    ``machines`` are pairs of GPUs on a machine and the number of such machines.
    """

    kind: str
    gpus: int
    machines: list[tuple[int, int]]
    until: float | None


class AppOffer(Struct, frozen=True, kw_only=True):
    """An app's standing before the next auction, if the cluster's policy holds any.

    ``rho`` is the app's finish-time fairness as the arbiter computes it. The app bids in GPUs of ``kind``, of which it
    could hold ``most`` at once. ``said``: the app's last bid is valid now.
    """

    app: str
    auctioned: bool
    rho: float | None = None
    kind: str | None = None
    most: int = 0
    said: bool = False
    jobs: list[WorkLeft] = field(default_factory=list)
    kinds: list[KindOffer] = field(default_factory=list)
