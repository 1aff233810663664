"""The views of ``/v1/watch``: rows by key, made from the answers of the rest of the API.

Values that change only because time passes are left out or rounded, so that a row is sent when something happened.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import floor, log2
from typing import Any, TypeAlias

import msgspec

from shoal.live.job_lists import JobFilter
from shoal.live.reported_searches import ReportedSearches
from shoal.serve.control_plane_api import ControlPlaneAPI
from shoal.serve.usage_sampler import UsageSampler
from shoal.wire.messages import JobRow, NodeRow, StartForecast, TenantRow
from shoal.wire.watch_messages import Expected, QueueRow

_DISK_GRAIN = 10**9
_RECENT_GRAIN = 0.05
_USE_STEPS = 10.0
"""GPU time is rounded this much finer than times to come."""
_MOST_RUNNING = 2000
_MOST_DECISIONS = 200
_SLICE = 300
"""Rows of jobs that are made again in each turn although nothing is known to have changed."""

_Find: TypeAlias = Callable[[ControlPlaneAPI, UsageSampler, str | None, str | None], dict[str, Any]]
"""Finds rows by key, for a tenant (None: an admin) and, in the view of one job, this job."""


def rows_of_view(
    control_plane: ControlPlaneAPI,
    usage: UsageSampler,
    view: str,
    tenant: str | None,
    job: str | None,
    searches: ReportedSearches | None = None,
) -> Callable[[], dict[str, Any]]:
    """Return the function that finds the rows of a view as a tenant (None: an admin) sees it, by key."""
    if view == "jobs":
        return _LiveJobs(control_plane, tenant)
    if view == "searches":
        return lambda: {f"{row.tenant} {row.app}": row for row in (searches or ReportedSearches()).rows(tenant)}
    return partial(_FIND[view], control_plane, usage, tenant, job)


def queue_row(row: JobRow, now: float) -> QueueRow:
    """Return a job's row without values that change only because time passes."""
    return QueueRow(
        id=row.id,
        name=row.name,
        tenant=row.tenant,
        state=row.state,
        reason=row.reason,
        submitted=round(row.submitted, 1),
        wanted=row.gpus_wanted,
        held=row.gpus_held,
        started=None if row.started is None else round(row.started, 1),
        part=round(min(row.done / row.work, 1.0), 2) if row.work else None,
        kind=row.kind,
        nodes=row.nodes,
        start=_expected(row.start, now),
        end=_expected(row.end, now),
        array=row.array,
        priority=row.priority,
        bid=None if row.bid is None else float(f"{row.bid:.3g}"),
    )


def _cluster(control_plane: ControlPlaneAPI, usage: UsageSampler, tenant: str | None, job: str | None) -> Any:
    return {"cluster": msgspec.structs.replace(control_plane.cluster(), now=0.0)}


@dataclass(slots=True)
class _LiveJobs:
    """The rows of the live jobs, encoded: each call renews those that changed, and a slice of all others in turn.

    Sentences in the others may have changed too, such as how many GPUs are left when a job's turn comes.
    """

    control_plane: ControlPlaneAPI
    tenant: str | None
    rows: dict[str, msgspec.Raw] = field(default_factory=dict)
    seen: int = -1
    """Number of the last change that the rows have."""
    at: int = 0
    """Where the next slice begins."""

    def __call__(self) -> dict[str, Any]:
        """Return the rows by id."""
        now, only = self.control_plane.cluster().now, JobFilter(offset=self.at, limit=_SLICE)
        self.seen, changed, ended = self.control_plane.pages.changed_jobs(self.tenant, self.seen)
        if changed is None:
            changed, self.rows, only = self.control_plane.jobs(self.tenant), {}, JobFilter(limit=_SLICE)
        in_turn = self.control_plane.jobs(self.tenant, only=only)
        self.at = self.at + _SLICE if len(in_turn) == _SLICE else 0
        self.rows |= {row.id: msgspec.Raw(msgspec.json.encode(queue_row(row, now))) for row in (*changed, *in_turn)}
        for id in ended:
            self.rows.pop(id, None)
        return self.rows


def _running(control_plane: ControlPlaneAPI, usage: UsageSampler, tenant: str | None, job: str | None) -> Any:
    """Return the jobs that hold GPUs, are suspended, or have an expected start: the first of the list."""
    now, first = control_plane.cluster().now, JobFilter(limit=_MOST_RUNNING)
    rows = control_plane.jobs(tenant, only=first)
    return {row.id: queue_row(row, now) for row in rows if row.gpus_held or row.nodes or row.start is not None}


def _nodes(control_plane: ControlPlaneAPI, usage: UsageSampler, tenant: str | None, job: str | None) -> Any:
    def steady(row: NodeRow) -> NodeRow:
        disk = None if row.disk_free is None else row.disk_free // _DISK_GRAIN * _DISK_GRAIN
        recent = None if row.recent_use is None else round(_rounded(row.recent_use, _RECENT_GRAIN), 2)
        return msgspec.structs.replace(row, heard=None if row.up else row.heard, disk_free=disk, recent_use=recent)

    return {row.name: steady(row) for row in control_plane.nodes(tenant)}


def _tenants(control_plane: ControlPlaneAPI, usage: UsageSampler, tenant: str | None, job: str | None) -> Any:
    def steady(row: TenantRow) -> TenantRow:
        used = _rounded(row.gpu_seconds, _grain(row.gpu_seconds / _USE_STEPS))
        return msgspec.structs.replace(row, gpu_seconds=used, part_ever=round(row.part_ever, 3))

    return {row.tenant: steady(row) for row in control_plane.share(tenant)}


def _usage(control_plane: ControlPlaneAPI, usage: UsageSampler, tenant: str | None, job: str | None) -> Any:
    return {f"{row.at:.0f}": row for row in usage.rows(tenant)}


def _fairness(control_plane: ControlPlaneAPI, usage: UsageSampler, tenant: str | None, job: str | None) -> Any:
    return {f"{row.at:.0f}": row for row in usage.fairness_rows(tenant)}


def _seats(control_plane: ControlPlaneAPI, usage: UsageSampler, tenant: str | None, job: str | None) -> Any:
    return {
        f"{row.began} {row.node} {row.tenant} {row.job} {row.run}": row for row in control_plane.pages.seats(tenant)
    }


def _policy(control_plane: ControlPlaneAPI, usage: UsageSampler, tenant: str | None, job: str | None) -> Any:
    return {"policy": control_plane.policies.in_force(control_plane.cluster().policy, tenant)}


def _decisions(control_plane: ControlPlaneAPI, usage: UsageSampler, tenant: str | None, job: str | None) -> Any:
    return {str(row.number): row for row in control_plane.pages.decisions(tenant, limit=_MOST_DECISIONS)}


def _job(control_plane: ControlPlaneAPI, usage: UsageSampler, tenant: str | None, job: str | None) -> Any:
    """Return a job's detail, and each entry of its story as a row of its own."""
    assert job is not None
    detail, now = control_plane.job(job, tenant), control_plane.cluster().now
    fields = msgspec.structs.asdict(detail)
    story, row = fields.pop("story"), detail.job
    fields |= {"job": queue_row(row, now), "ended": row.ended, "work": row.work, "done": row.done, "time": row.time}
    return {"detail": fields, **{f"{number:06d}": moment for number, moment in enumerate(story)}}


def _training(control_plane: ControlPlaneAPI, usage: UsageSampler, tenant: str | None, job: str | None) -> Any:
    assert job is not None
    return {f"{point.at:.1f}": point for point in control_plane.pages.training(job, tenant)}


_FIND: Mapping[str, _Find] = {
    "cluster": _cluster,
    "nodes": _nodes,
    "running": _running,
    "tenants": _tenants,
    "usage": _usage,
    "seats": _seats,
    "fairness": _fairness,
    "decisions": _decisions,
    "policy": _policy,
    "job": _job,
    "training": _training,
}
VIEWS = (*_FIND, "jobs", "searches")
"""The names of the views."""
OF_ONE_JOB = frozenset({"job", "training"})
"""Those of the job that the listener names."""


def _expected(found: StartForecast | None, now: float) -> Expected | None:
    if found is None:
        return None
    return Expected(*(_rounded(now + seconds, _grain(seconds)) for seconds in (found.median, found.low, found.high)))


def _grain(seconds: float) -> float:
    """Return the power of two, at least 1 s, that is between a fortieth and a twentieth of a time."""
    return float(2 ** max(0, floor(log2(max(seconds, 1.0) / 20))))


def _rounded(value: float, grain: float) -> float:
    return round(value / grain) * grain
