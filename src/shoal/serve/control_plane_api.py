"""The cluster as the HTTP door sees it: whatever has these methods can be served, a live plane or a test's stand-in.

Every method may be called from any thread. What takes a ``tenant`` answers for that tenant alone; None is an admin.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol

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


class MetricsView(Protocol):
    """The numbers behind ``/v1/metrics``; the two lists hold what came since they were last asked for."""

    @property
    def states(self) -> Mapping[str, int]:
        """Jobs by state."""
        ...

    @property
    def gpus_up(self) -> Mapping[str, int]:
        """GPUs on nodes that answer, by kind."""
        ...

    @property
    def gpus_used(self) -> Mapping[str, int]:
        """GPUs held by jobs, by kind."""
        ...

    @property
    def nodes_up(self) -> int:
        """Nodes that answer."""
        ...

    @property
    def nodes_down(self) -> int:
        """Nodes that do not."""
        ...

    @property
    def decisions(self) -> int:
        """Decisions so far."""
        ...

    @property
    def decision_seconds(self) -> Sequence[float]:
        """How long each new decision took."""
        ...

    @property
    def commit_seconds(self) -> Sequence[float]:
        """How long each new commit of the journal took."""
        ...

    @property
    def tenants(self) -> Sequence[TenantRow]:
        """What each tenant holds and has had."""
        ...

    @property
    def lost_gpu_seconds(self) -> float:
        """Work that had to be done again."""
        ...

    @property
    def restarts(self) -> int:
        """Incarnations after the first, of all jobs."""
        ...

    @property
    def crashes(self) -> int:
        """Incarnations that ended by their own fault."""
        ...

    @property
    def completed(self) -> int:
        """Jobs that reached their end."""
        ...

    @property
    def submitted(self) -> int:
        """Jobs ever accepted."""
        ...

    @property
    def review_in(self) -> float:
        """Seconds until the policy is asked again, if nothing happens first."""
        ...


class ControlPlaneAPI(Protocol):
    """What the door calls. An unknown job, or another tenant's, is a ``LookupError``; bad input an ``InputError``."""

    @property
    def failed(self) -> str | None:
        """Why the loop died, once it has."""
        ...

    def submit(self, submissions: Sequence[Submission], tenant: str) -> "Future[list[str]]":
        """Take jobs in, those that name no tenant for this one; resolves when they are durable."""
        ...

    def cancel(self, job: str, tenant: str | None) -> "Future[None]":
        """End a job."""
        ...

    def reshape(self, job: str, shape: Reshape, tenant: str | None) -> "Future[None]":
        """Give a job another gang."""
        ...

    def jobs(self, tenant: str | None, *, ended: bool = False) -> list[JobRow]:
        """The live jobs, and on request those that ended."""
        ...

    def job(self, job: str, tenant: str | None) -> JobDetail:
        """Everything about one job."""
        ...

    def offer(self, app: str, tenant: str | None) -> AppOffer:
        """How an app stands before the next auction; an unknown one, or another tenant's, is a ``LookupError``."""
        ...

    def bid(self, app: str, valuation: AppBidMessage, tenant: str | None) -> "Future[None]":
        """Hear what GPUs are worth to an app; unknown ones as before."""
        ...

    def nodes(self, tenant: str | None) -> list[NodeRow]:
        """The nodes."""
        ...

    def share(self, tenant: str | None) -> list[TenantRow]:
        """What tenants hold and have had."""
        ...

    def acct(self, tenant: str | None) -> list[AcctRow]:
        """The jobs that ended and what they took."""
        ...

    def cluster(self) -> ClusterRow:
        """The cluster in one look; never blocks."""
        ...

    def hello(self, hello: Hello) -> AgentOrders:
        """An agent introduces itself; never blocks."""
        ...

    def sync(self, report: AgentReport) -> AgentOrders:
        """Hear an agent's report and give its orders; never blocks."""
        ...

    def generation(self, node: str) -> int:
        """The generation of a node's orders; it rises with each change, and when a log is to be read there."""
        ...

    def listen(self, callback: Callable[[], None]) -> None:
        """Call this, from any thread, whenever orders or the board changed."""
        ...

    def read_log(
        self, job: str, tenant: str | None, *, incarnation: int | None, rank: int, offset: int, most: int
    ) -> "Future[LogPart]":
        """A piece of a rank's log, once its node has sent it."""
        ...

    def figures(self) -> MetricsView:
        """The numbers behind the metrics."""
        ...
