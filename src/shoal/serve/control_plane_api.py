"""What the HTTP server calls: the live control plane, or a test's stand-in with the same methods.

Every method may be called from any thread. A method that takes a ``tenant`` answers for that tenant alone; None stands
for an admin, who sees all.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

from shoal.live.control_plane import ControlPlaneFigures
from shoal.wire.messages import (
    AcctRow,
    AgentOrders,
    AgentReport,
    AppBidMessage,
    AppOffer,
    ClusterRow,
    Hello,
    JobDetail,
    JobRow,
    LogPart,
    NodeRow,
    Reshape,
    Submission,
    TenantRow,
)


class ControlPlaneAPI(Protocol):
    """Unknown jobs and apps, or another tenant's, are a ``LookupError``; bad input is an ``InputError``.

    Futures resolve when the change is durable in the journal.
    """

    @property
    def failed(self) -> str | None:
        """Why the loop died; None while it runs."""
        ...

    def submit(self, submissions: Sequence[Submission], tenant: str) -> "Future[list[str]]":
        """Accept jobs, all or none; ``tenant`` owns those that name no tenant. Resolves to their ids."""
        ...

    def cancel(self, job: str, tenant: str | None) -> "Future[None]":
        """End a job."""
        ...

    def reshape(self, job: str, shape: Reshape, tenant: str | None) -> "Future[None]":
        """Change the bounds of a job's gang."""
        ...

    def jobs(self, tenant: str | None, *, ended: bool = False) -> list[JobRow]:
        """List the live jobs, with ``ended`` also those that ended."""
        ...

    def job(self, job: str, tenant: str | None) -> JobDetail:
        """Everything about one job."""
        ...

    def offer(self, app: str, tenant: str | None) -> AppOffer:
        """How an app stands before the next auction."""
        ...

    def bid(self, app: str, valuation: AppBidMessage, tenant: str | None) -> "Future[None]":
        """Record an app's valuation of GPUs."""
        ...

    def nodes(self, tenant: str | None) -> list[NodeRow]:
        """List the nodes."""
        ...

    def share(self, tenant: str | None) -> list[TenantRow]:
        """GPUs and GPU-seconds by tenant."""
        ...

    def acct(self, tenant: str | None) -> list[AcctRow]:
        """List the jobs that ended and the resources they used."""
        ...

    def cluster(self) -> ClusterRow:
        """Summary of the cluster; never blocks."""
        ...

    def hello(self, hello: Hello) -> AgentOrders:
        """Register an agent; never blocks."""
        ...

    def sync(self, report: AgentReport) -> AgentOrders:
        """Take an agent's report and return its orders; never blocks."""
        ...

    def generation(self, node: str) -> int:
        """Generation of a node's orders: rises with each change, and when a log is to be read there."""
        ...

    def listen(self, callback: Callable[[], None]) -> None:
        """Call ``callback``, from any thread, whenever orders or the last decision changed."""
        ...

    def read_log(
        self, job: str, tenant: str | None, *, incarnation: int | None, rank: int, offset: int, most: int
    ) -> "Future[LogPart]":
        """Part of a rank's log; resolves when its node has sent it."""
        ...

    def figures(self) -> ControlPlaneFigures:
        """The numbers behind ``/v1/metrics``; drains the lists of decision and commit times."""
        ...
