"""The Prometheus endpoint: the control plane's figures at the time of the scrape, and counts of requests."""

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from shoal.live.figures import ControlPlaneFigures
from shoal.serve.control_plane_api import ControlPlaneAPI
from shoal.wire.messages import TenantRow

MEDIA = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Metrics:
    """The metrics of one server, in a registry of its own: several may run in one process."""

    def __init__(self, control_plane: ControlPlaneAPI) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "shoal_http_requests", "Requests answered.", ["method", "route", "status"], registry=self._registry
        )
        self._registry.register(_ClusterCollector(control_plane))

    def answered(self, method: str, route: str, status: int) -> None:
        """Count a request under its route's template, since arbitrary paths must not become time series."""
        self._requests.labels(method if method in _METHODS else "other", route, str(status)).inc()

    def text(self) -> bytes:
        """Return all metrics in the text exposition format."""
        return generate_latest(self._registry)


class _ClusterCollector:
    """Collects the control plane's figures when scraped."""

    def __init__(self, control_plane: ControlPlaneAPI) -> None:
        self._control_plane = control_plane
        self._decisions = Histogram(
            "shoal_decision_duration_seconds", "Time to decide.", buckets=_SECONDS, registry=None
        )
        self._commits = Histogram(
            "shoal_journal_commit_duration_seconds", "Time to make records durable.", buckets=_SECONDS, registry=None
        )

    def describe(self) -> Iterable[Metric]:
        """Return nothing: reading the figures empties their lists, which only a scrape may do."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the figures at this moment."""
        figures = self._control_plane.figures()
        for seconds in figures.decision_seconds:
            self._decisions.observe(seconds)
        for seconds in figures.commit_seconds:
            self._commits.observe(seconds)
        cluster = self._control_plane.cluster()
        build = GaugeMetricFamily("shoal_build_info", "Always 1.", labels=["version", "policy"])
        build.add_metric([cluster.version, cluster.policy], 1.0)
        yield build
        yield from _cluster(figures)
        yield from _work(figures)
        yield from _tenants(figures.tenants)
        yield from self._decisions.collect()
        yield from self._commits.collect()


def _cluster(figures: ControlPlaneFigures) -> Iterator[Metric]:
    yield _by("shoal_gpus_up", "GPUs on nodes that answer.", "kind", figures.gpus_up.items())
    yield _by("shoal_gpus_used", "GPUs held by jobs.", "kind", figures.gpus_used.items())
    up, used = sum(figures.gpus_up.values()), sum(figures.gpus_used.values())
    yield GaugeMetricFamily(
        "shoal_gpu_utilization_ratio", "Fraction of the GPUs up that jobs hold.", value=used / up if up else 0.0
    )
    nodes = (("up", figures.nodes_up), ("down", figures.nodes_down))
    yield _by("shoal_nodes", "Nodes, by whether they answer.", "state", nodes)
    yield GaugeMetricFamily(
        "shoal_next_review_seconds", "Time until the next scheduled decision.", value=figures.review_in
    )


_COUNTERS = (
    ("shoal_decisions", "Decisions made.", "decisions"),
    ("shoal_jobs_submitted", "Jobs accepted.", "submitted"),
    ("shoal_jobs_completed", "Jobs that reached their end.", "completed"),
    ("shoal_job_restarts", "Incarnations after a job's first.", "restarts"),
    ("shoal_job_crashes", "Incarnations that ended by their own fault.", "crashes"),
    ("shoal_job_lost_gpu_seconds", "GPU time whose work had to be done again.", "lost_gpu_seconds"),
)
_BY_TENANT = (
    ("shoal_tenant_gpus", "GPUs held now.", "held"),
    ("shoal_tenant_jobs", "Jobs not ended.", "live"),
    ("shoal_tenant_gpu_share_ratio", "Fraction of the GPUs held now.", "part_now"),
    ("shoal_tenant_gpu_time_share_ratio", "Fraction of all GPU time so far.", "part_ever"),
)


def _work(figures: ControlPlaneFigures) -> Iterator[Metric]:
    yield _by("shoal_jobs", "Jobs, by state.", "state", figures.states.items())
    for name, text, field in _COUNTERS:
        yield CounterMetricFamily(name, text, value=getattr(figures, field))


def _tenants(tenants: Sequence[TenantRow]) -> Iterator[Metric]:
    for name, text, field in _BY_TENANT:
        yield _by(name, text, "tenant", ((row.tenant, getattr(row, field)) for row in tenants))
    used = CounterMetricFamily("shoal_tenant_gpu_seconds", "GPU time used so far.", labels=["tenant"])
    for row in tenants:
        used.add_metric([row.tenant], row.gpu_seconds)
    yield used
    yield GaugeMetricFamily(
        "shoal_tenant_fairness_ratio",
        "Jain's index of the GPUs held by tenants with live jobs: 1 is equal, 1/n is all to one of n.",
        value=_jain([row.held for row in tenants if row.live]),
    )


def _by(name: str, help_text: str, label: str, values: Iterable[tuple[str, float]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, help_text, labels=[label])
    for key, value in values:
        family.add_metric([key], value)
    return family


def _jain(held: Sequence[float]) -> float:
    squares = sum(value * value for value in held)
    return sum(held) ** 2 / (len(held) * squares) if squares else 1.0
