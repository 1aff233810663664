"""Figures of a recorded Slurm history: the cluster, waits, and idle, over-asked and wrong-kind GPU-hours."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.core.arrays import Flags, Floats, Int64s
from shoal.core.errors import InputError
from shoal.core.topology import Topology
from shoal.workload.importers.sacct import RecordedJob
from shoal.workload.importers.slurm_fields import expand_nodes

UNKNOWN_KIND = "gpu"
"""Name of the only kind where a history names none."""

HOUR = 3600.0
_NODE_SIZES = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class RecordedColumns:
    """Recorded jobs as arrays, in order of eligibility; times in seconds since the first became eligible.

    ``kind`` is the index in ``kinds`` of the kind it ran on, −1 if unknown; ``usable`` (jobs × kinds) says where it
    could have run; ``limit`` is the time limit and ``use`` the GPU utilization, NaN where unknown.
    """

    jobs: tuple[RecordedJob, ...]
    kinds: tuple[str, ...]
    eligible: Floats
    started: Floats
    ended: Floats
    gpus: Floats
    limit: Floats
    use: Floats
    kind: Int64s
    usable: Flags
    tenant: Int64s
    tenants: tuple[str, ...]

    @property
    def run(self) -> Floats:
        """Recorded run times, seconds."""
        return self.ended - self.started


def columns_of(jobs: Sequence[RecordedJob], cluster: Topology | None = None) -> RecordedColumns:
    """The recorded jobs that have a start, as arrays; their kinds are the cluster's, or else those recorded."""
    known = sorted((job for job in jobs if job.started is not None), key=lambda job: job.eligible)
    if not known:
        raise InputError("history", len(jobs), "has no job with a recorded start; add the columns Start and End")
    ran_on = _kinds_of(known)
    kinds = cluster.kinds if cluster is not None else tuple(dict.fromkeys(filter(None, ran_on))) or (UNKNOWN_KIND,)
    index = {kind: place for place, kind in enumerate(kinds)}
    only = 0 if len(kinds) == 1 else -1
    kind = np.array([index.get(name or "", only) for name in ran_on], dtype=np.int64)
    tenants = tuple(dict.fromkeys(recorded.job.tenant for recorded in known))
    number = {tenant: place for place, tenant in enumerate(tenants)}
    origin = known[0].eligible

    def column(values: Sequence[float | None]) -> Floats:
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)

    return RecordedColumns(
        jobs=tuple(known),
        kinds=kinds,
        eligible=column([r.eligible for r in known]) - origin,
        started=np.maximum(column([r.started for r in known]), column([r.eligible for r in known])) - origin,
        ended=np.maximum(column([r.started for r in known]), column([r.eligible for r in known]))
        + column([r.job.work for r in known])
        - origin,
        gpus=column([r.job.gpus for r in known]),
        limit=column([r.job.declared_work for r in known]),
        use=column([r.gpu_use for r in known]),
        kind=kind,
        usable=_usable(known, kinds, kind),
        tenant=np.array([number[r.job.tenant] for r in known], dtype=np.int64),
        tenants=tenants,
    )


def clean_kind(name: str) -> str:
    """A kind's name with only characters that a cluster specification allows."""
    return re.sub(r"[^A-Za-z0-9_.\-]", "_", name)


def _kinds_of(jobs: Sequence[RecordedJob]) -> list[str | None]:
    """Return the kind that each job ran on: as recorded, else that of other jobs on its first node, else None."""
    by_node: dict[str, Counter[str]] = defaultdict(Counter)
    first_node = [next(iter(expand_nodes(recorded.nodes)), "") for recorded in jobs]
    for recorded, node in zip(jobs, first_node, strict=True):
        if recorded.kind and node:
            by_node[node][clean_kind(recorded.kind)] += 1
    return [
        clean_kind(recorded.kind)
        if recorded.kind
        else (by_node[node].most_common(1)[0][0] if node in by_node else None)
        for recorded, node in zip(jobs, first_node, strict=True)
    ]


def _usable(jobs: Sequence[RecordedJob], kinds: Sequence[str], kind: Int64s) -> Flags:
    """Jobs × kinds: the kinds asked for; else those on which jobs of the same partition ran; else all."""
    seen: dict[str, set[int]] = defaultdict(set)
    for recorded, place in zip(jobs, kind.tolist(), strict=True):
        if place >= 0:
            seen[recorded.partition].add(place)
    usable = np.zeros((len(jobs), len(kinds)), dtype=bool)
    for i, recorded in enumerate(jobs):
        asked = [kinds.index(k) for k in map(clean_kind, recorded.job.kinds or ()) if k in kinds]
        mine = asked or (seen[recorded.partition] if recorded.partition else ()) or range(len(kinds))
        usable[i, list(mine)] = True
        if kind[i] >= 0:
            usable[i, kind[i]] = True
    return usable


# ── the cluster ───────────────────────────────────────────────────────────────────────────────────────────────────


def cluster_spec(columns: RecordedColumns) -> tuple[str, str]:
    """The specification of the cluster that a history shows, and a sentence on how it was found.

    With lists of nodes: every node seen, as large as the most GPUs used on it at once, rounded up to 1, 2, 4, 8 or 16.
    Else the most GPUs of each kind used at once, rounded up to nodes of 8 (or to one smaller node).
    """
    spans = (columns.started, columns.ended)
    peaks = [_peak(*spans, np.where(columns.kind == k, columns.gpus, 0.0)) for k in range(len(columns.kinds))]
    unknown = _peak(*spans, columns.gpus) - sum(peaks)
    if unknown > 0 and (columns.kind < 0).any():
        peaks[-1] += unknown  # jobs of unknown kind ran somewhere
    groups = _node_groups(columns)
    if groups is not None:
        for k, kind in enumerate(columns.kinds):
            missing = peaks[k] - sum(size * n for (name, size), n in groups.items() if name == kind)
            if missing > 0:
                groups[kind, 8] += -(-int(missing) // 8)
        how = "the nodes in NodeList, each with the most GPUs used on it at once"
    else:
        groups = Counter()
        for kind, peak in zip(columns.kinds, peaks, strict=True):
            if peak > 0:
                size = next((size for size in _NODE_SIZES if size >= peak), 8) if peak < 8 else 8
                groups[kind, size] += -(-int(peak) // size)
        how = "the most GPUs of each kind in use at once, in nodes of 8"
    order = sorted(groups, key=lambda group: (columns.kinds.index(group[0]), -group[1]))
    return ",".join(f"{kind}:{groups[kind, size]}x{size}" for kind, size in order), how


def _peak(since: Floats, until: Floats, weight: Floats) -> float:
    """The largest sum of weights at one time; an interval that ends when another begins does not overlap it."""
    times, change = np.concatenate([until, since]), np.concatenate([-weight, weight])
    return float(np.cumsum(change[np.argsort(times, kind="stable")]).max(initial=0.0))


def _node_groups(columns: RecordedColumns) -> Counter[tuple[str, int]] | None:
    """Numbers of nodes by kind and size; None where fewer than nine in ten jobs name their nodes."""
    spans: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    kinds: dict[str, Counter[int]] = defaultdict(Counter)
    named = 0
    starts, ends, gpus, kind = (a.tolist() for a in (columns.started, columns.ended, columns.gpus, columns.kind))
    for i, recorded in enumerate(columns.jobs):
        nodes = expand_nodes(recorded.nodes)
        named += bool(nodes)
        for node in nodes:
            spans[node].append((starts[i], ends[i], -(-gpus[i] // len(nodes))))
            kinds[node][kind[i]] += 1
    if named < 0.9 * len(columns.jobs):
        return None
    groups: Counter[tuple[str, int]] = Counter()
    for node, rows in spans.items():
        peak = _peak(*np.array(rows).T)
        size = next((size for size in _NODE_SIZES if size >= peak), 16)
        best = kinds[node].most_common(1)[0][0]
        groups[columns.kinds[max(best, 0)], size] += 1
    return groups


# ── idle, over-asked and wrong-kind GPU-hours ─────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _LevelsOverTime:
    """Change points and the levels of several step functions between them."""

    times: Floats
    levels: Floats

    def integral(self, values: Floats) -> float:
        """The integral over time of values between change points."""
        return float((values * np.diff(self.times)).sum())


def _levels(spans: Sequence[tuple[Floats, Floats, Floats]], begin: float, end: float) -> _LevelsOverTime:
    """Sums of weights over time, one row for each group of intervals, from ``begin`` to ``end``."""
    edges = [np.clip(times, begin, end) for since, until, _ in spans for times in (since, until)]
    times = np.unique(np.concatenate([*edges, [begin, end]]))
    levels = np.zeros((len(spans), len(times)))
    for row, (since, until, weight) in enumerate(spans):
        np.add.at(levels[row], np.searchsorted(times, np.clip(since, begin, end)), weight)
        np.add.at(levels[row], np.searchsorted(times, np.clip(until, begin, end)), -weight)
    return _LevelsOverTime(times, np.cumsum(levels, axis=1)[:, :-1])


def waste(columns: RecordedColumns, cluster: Topology) -> dict[str, Any]:
    """GPU-hours idle, over-asked and of the wrong kind, from the first to the last time a job became eligible.

    - ``idle``: not allocated; ``idle_while_waiting`` of it, while jobs that could have used that kind waited.
    - ``wrong_kind``: idle GPUs of a kind while jobs waited that had asked for other kinds. This is an upper bound of
      what would have been used had these jobs accepted any kind, since gangs may not have fitted.
    - ``over_asked_time``: GPUs × (time limit − run time); ``unused_gpu``: GPUs × run time × (1 − utilization).
    """
    end = float(columns.eligible.max())
    if end <= 0.0:
        end = float(columns.ended.max())
    waits, runs, gpus = (columns.eligible, columns.started), (columns.started, columns.ended), columns.gpus
    rows: list[dict[str, Any]] = []
    total_wrong: Floats | None = None
    for k, kind in enumerate(columns.kinds):
        mine = np.where(columns.kind == k, gpus, 0.0)
        if len(columns.kinds) > 1 and (columns.kind < 0).any() and k == len(columns.kinds) - 1:
            mine = np.where(columns.kind < 0, gpus, mine)
        can = columns.usable[:, k]
        found = _levels([(*runs, mine), (*waits, gpus * can), (*waits, gpus * ~can), (*waits, gpus)], 0.0, end)
        used, wanted, others, everyone = found.levels
        idle = np.maximum(cluster.installed[k] - used, 0.0)
        wrong = np.minimum(np.maximum(idle - wanted, 0.0), others)
        total_wrong = wrong if total_wrong is None else np.minimum(total_wrong + wrong, everyone)
        rows.append(
            {
                "kind": kind,
                "gpus": cluster.installed[k],
                "gpu_hours": cluster.installed[k] * end / HOUR,
                "used": found.integral(np.minimum(used, cluster.installed[k])) / HOUR,
                "idle": found.integral(idle) / HOUR,
                "idle_while_waiting": found.integral(np.minimum(idle, wanted)) / HOUR,
                "wrong_kind": found.integral(wrong) / HOUR,
            }
        )
        spans = found
    sums: dict[str, Any] = {
        key: sum(float(row[key]) for row in rows) for key in ("gpu_hours", "used", "idle", "idle_while_waiting")
    }
    if total_wrong is not None:
        sums["wrong_kind"] = spans.integral(total_wrong) / HOUR
    return {"days": end / 86400.0, "kinds": rows, **sums, **_over_asked(columns)}


def _over_asked(columns: RecordedColumns) -> dict[str, Any]:
    run, limited, measured = columns.run, np.isfinite(columns.limit), np.isfinite(columns.use)
    asked = columns.gpus * columns.limit
    over = columns.gpus * np.maximum(columns.limit - run, 0.0)
    ratio = columns.limit[limited] / np.maximum(run[limited], 1.0)
    by_state: dict[str, float] = defaultdict(float)
    for recorded, hours in zip(columns.jobs, (columns.gpus * run / HOUR).tolist(), strict=True):
        by_state[recorded.state or "unknown"] += hours
    return {
        "asked_time": float(asked[limited].sum()) / HOUR,
        "over_asked_time": float(over[limited].sum()) / HOUR,
        "limit_over_run_median": float(np.median(ratio)) if len(ratio) else None,
        "jobs_with_limit": int(limited.sum()),
        "measured_gpu_hours": float((columns.gpus * run)[measured].sum()) / HOUR,
        "unused_gpu": float((columns.gpus * run * (1.0 - columns.use))[measured].sum()) / HOUR,
        "gpu_hours_by_state": dict(sorted(by_state.items(), key=lambda pair: -pair[1])),
    }


def use_over_time(columns: RecordedColumns, points: int = 400) -> Mapping[str, list[float]]:
    """GPUs in use and GPUs that waiting jobs asked for, averaged over equal steps of time, in hours; for a chart."""
    end = float(columns.eligible.max()) or float(columns.ended.max())
    found = _levels(
        [(columns.started, columns.ended, columns.gpus), (columns.eligible, columns.started, columns.gpus)], 0.0, end
    )
    edges = np.linspace(0.0, end, points + 1)
    rows = []
    for level in found.levels:
        integral = np.concatenate([[0.0], np.cumsum(level * np.diff(found.times))])
        rows.append(np.diff(np.interp(edges, found.times, integral)) / (edges[1] - edges[0]))
    used, waiting = (np.round(row, 2).tolist() for row in rows)
    return {"x": np.round(edges[:-1] / HOUR, 4).tolist(), "used": used, "waiting": waiting}
