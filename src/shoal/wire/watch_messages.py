"""Rows of ``/v1/watch``, which pages show, without values that change only because time passes.

Times are Unix seconds. Expected times are rounded to a twentieth of their distance, so that they change rarely.
"""

from msgspec import Struct, field


class Expected(Struct, frozen=True):
    """When something is expected: the median and the 10th and 90th percentile."""

    median: float
    low: float
    high: float


class QueueRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One live job. ``part`` is the fraction of its work that is done, as of the last report."""

    id: str
    name: str
    tenant: str
    state: str
    reason: str
    submitted: float
    wanted: int
    held: int = 0
    started: float | None = None
    part: float | None = None
    kind: str | None = None
    nodes: list[str] = field(default_factory=list)
    start: Expected | None = None
    end: Expected | None = None
    array: str | None = None
    priority: int = 0
    bid: float | None = None


class SeatRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """GPUs of one node that a run of a job held, from ``began`` to ``ended`` (null: still).

    ``decision`` is the number of the decision that placed it. Of another tenant's job the name is empty and the tenant
    is ``others``.
    """

    job: str
    tenant: str
    run: int
    node: str
    gpus: int
    began: float
    ended: float | None = None
    decision: int | None = None


class FairnessRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tenant, or one of its apps, now: live jobs, GPUs held and what they cost in dollars per hour.

    ``rho`` is the mean and ``worst`` the highest ρ of its jobs whose work is known: the time from submission to the end
    if the job runs from now on, over that on 1/n of the GPUs, n being the live jobs.
    """

    tenant: str
    app: str | None = None
    jobs: int = 0
    held: int = 0
    rho: float | None = None
    worst: float | None = None
    dollars: float = 0.0


class FairnessSample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tenants and apps at one time; ``spent`` are dollars by tenant since the control plane started."""

    at: float
    up: int
    rows: list[FairnessRow]
    spent: dict[str, float] = field(default_factory=dict)


class UsageRow(Struct, frozen=True, kw_only=True):
    """GPUs and jobs of the cluster at one time, and the GPUs that tenants held."""

    at: float
    up: int
    used: int
    running: int
    waiting: int
    held: dict[str, int]
