"""The methods that the HTTP server calls: of the live control plane, or of a test's stand-in.

Every method may be called from any thread. A method that takes a ``tenant`` answers for that tenant alone; None stands
for an admin, who sees all.
"""

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import Protocol

from shoal.live.figures import ControlPlaneFigures
from shoal.live.job_lists import ANY_JOB, JobFilter
from shoal.live.sessions import SessionRelay
from shoal.wire import messages as wire
from shoal.wire.decision_messages import DecisionRow
from shoal.wire.policy_messages import PolicyInForce
from shoal.wire.training_messages import TrainingPoint
from shoal.wire.watch_messages import FairnessRow, SeatRow


class JobVerbsAPI(Protocol):
    """Requests on submitted jobs; ``by`` names the person who asks, as histories show it."""

    def hold(self, job: str, tenant: str | None, by: str) -> "Future[None]":
        """Hold a job."""

    def release(self, job: str, tenant: str | None, by: str) -> "Future[None]":
        """Release a held job."""

    def requeue(self, job: str, tenant: str | None, by: str) -> "Future[None]":
        """Stop a running job and put it back into the queue."""

    def prioritise(self, job: str, priority: int, tenant: str | None, by: str) -> "Future[None]":
        """Change a job's priority."""

    def prioritise_many(
        self, which: wire.PrioritiseMany, tenant: str | None, by: str
    ) -> "tuple[list[str], Future[None]]":
        """Change the priority of the live jobs that fit; return their ids."""

    def cancel_many(self, which: wire.CancelMany, tenant: str | None) -> "tuple[list[str], Future[None]]":
        """Cancel the live jobs that fit; return their ids."""


class PageRowsAPI(Protocol):
    """The methods that return rows which only pages show, not the command line."""

    def seats(self, tenant: str | None) -> list[SeatRow]:
        """List which job held which GPUs when."""

    def changed_jobs(self, tenant: str | None, since: int) -> tuple[int, list[wire.JobRow] | None, list[str]]:
        """Return the number of the last change, the live jobs that changed after ``since``, and the ids that ended."""

    def decisions(
        self, tenant: str | None, before: int | None = None, job: str | None = None, limit: int = 50
    ) -> list[DecisionRow]:
        """List the latest decisions that moved jobs the tenant may see, or this job, the latest first."""

    def fairness(self, tenant: str | None) -> list[FairnessRow]:
        """Return how tenants and their apps fare now."""

    def training(self, job: str, tenant: str | None) -> list[TrainingPoint]:
        """Return the figures of a job's training, in order of time."""


class PoliciesAPI(Protocol):
    """The policy that decides, and the shadow policy, which is asked too and changes nothing."""

    def switch(self, policy: str) -> "Future[None]":
        """Let this policy decide from the next decision on."""

    def shadow(self, policy: str | None) -> None:
        """Ask this policy beside the deciding one; None asks none."""

    def in_force(self, policy: str, tenant: str | None) -> PolicyInForce:
        """Return the deciding policy, whose name is given, and the shadow's figures as a tenant may see them."""


class MembersAPI(Protocol):
    """Nodes that join the cluster and nodes that are removed."""

    def add(self, wanted: wire.NewNode, *, again: bool = False) -> "Future[None]":
        """Add a node; ``again`` allows one that the cluster has and that is down."""

    def remove(self, name: str) -> "Future[None]":
        """Remove a node without runs."""


class ControlPlaneAPI(Protocol):
    """The control plane as the HTTP server sees it.

    Unknown jobs and apps, or another tenant's, raise ``LookupError``; bad input raises ``InputError``. Futures resolve
    when the change is durable in the journal.
    """

    @property
    def failed(self) -> str | None:
        """Why the loop died; None while it runs."""

    @property
    def short_of_disk(self) -> str:
        """Why new work is refused for lack of disk space; empty if it is not."""

    def submit(
        self, submissions: Sequence[wire.Submission], tenant: str, sees: str | None = None
    ) -> "Future[list[str]]":
        """Accept jobs, all or none; ``tenant`` owns those that name no tenant. Resolves to their ids.

        They may depend on jobs that ``sees`` owns, or on any if None.
        """

    def cancel(self, job: str, tenant: str | None, *, force: bool = False) -> "Future[None]":
        """End a job; with ``force`` without grace."""

    @property
    def verbs(self) -> JobVerbsAPI:
        """Requests on single jobs."""

    def reshape(self, job: str, shape: wire.Reshape, tenant: str | None) -> "Future[None]":
        """Change the bounds of a job's gang."""

    def jobs(self, tenant: str | None, *, ended: bool = False, only: JobFilter = ANY_JOB) -> list[wire.JobRow]:
        """List the live jobs, with ``ended`` also those that ended, of which ``only`` selects some."""

    def job(self, job: str, tenant: str | None) -> wire.JobDetail:
        """Return everything about one job."""

    def offer(self, app: str, tenant: str | None) -> wire.AppOffer:
        """Return an app's standing before the next auction."""

    def bid(self, app: str, valuation: wire.AppBidMessage, tenant: str | None) -> "Future[None]":
        """Record an app's valuation of GPUs."""

    def nodes(self, tenant: str | None) -> list[wire.NodeRow]:
        """List the nodes."""

    @property
    def members(self) -> MembersAPI:
        """The nodes, to add and to remove."""

    def drain(self, node: str, reason: str, by: str) -> "Future[None]":
        """Give a node no new runs until it is resumed."""

    def resume_node(self, node: str) -> "Future[None]":
        """Give a drained node runs again."""

    def share(self, tenant: str | None) -> list[wire.TenantRow]:
        """Return GPUs and GPU-seconds by tenant."""

    def set_quota(self, wanted: wire.QuotaMessage) -> "Future[None]":
        """Set a tenant's quota."""

    def quotas(self) -> list[wire.QuotaMessage]:
        """List the quotas."""

    @property
    def policies(self) -> PoliciesAPI:
        """The deciding policy, to switch, and the shadow policy."""

    @property
    def pages(self) -> PageRowsAPI:
        """The rows that pages show and the command line does not."""

    def acct(self, tenant: str | None) -> list[wire.AcctRow]:
        """List the jobs that ended and the resources they used."""

    def cluster(self) -> wire.ClusterRow:
        """Return the summary of the cluster; never blocks."""

    def hello(self, hello: wire.Hello) -> wire.AgentOrders:
        """Register an agent; never blocks."""

    def sync(self, report: wire.AgentReport) -> wire.AgentOrders:
        """Take an agent's report and return its orders; never blocks."""

    def generation(self, node: str, allocation: str = "") -> int:
        """Return the generation of an agent's orders: it rises with each change, and when a log is to be read there."""

    def touched(self) -> Collection[str]:
        """Return the names of the nodes whose generation may have risen since the last call; never blocks."""

    def listen(self, callback: Callable[[], None]) -> None:
        """Call ``callback``, from any thread, whenever orders or the last decision changed."""

    def read_log(
        self, job: str, tenant: str | None, *, incarnation: int | None, rank: int, offset: int, most: int
    ) -> "Future[wire.LogPart]":
        """Request a part of a rank's log; the future resolves when its node has sent it."""

    @property
    def sessions(self) -> SessionRelay:
        """The sessions inside running jobs."""

    def open_session(self, job: str, tenant: str | None, wanted: wire.NewSession, caller: str) -> wire.SessionOpened:
        """Start a command inside a running job; the limits of ``caller`` apply."""

    def figures(self) -> ControlPlaneFigures:
        """Return the figures for ``/v1/metrics``, and empty the lists of decision and commit times."""
