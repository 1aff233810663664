"""Apps that keep what they have: nothing that decides over their GPUs changed since the last decision.

What an app keeps of each kind follows from its jobs, the GPUs they hold and its leases. If the last decision awarded
the app nothing, and all of these are as they were then, the answer is that of the last decision: it is carried by job
and not computed again. After an award the app's answer is computed anew.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from shoal.core.arrays import Flags, Indices, Int8s, Int32s
from shoal.core.interfaces import PerfModel
from shoal.core.snapshot import Snapshot
from shoal.policy.carried_rows import match_rows


class SettledApp(NamedTuple):
    """An app's leases by kind; by kind the GPUs it keeps, and the numbers of further GPUs it could use where known."""

    leases: tuple[object, ...]
    kept: Mapping[int, int]
    sizes: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class SettledCarry:
    """The apps that could be settled at the next decision, and by admission number (``rows``) what that depends on.

    ``seen`` has a column for each job; ``gpus`` and ``kinds`` are what it was given.
    """

    apps: Mapping[int, SettledApp] = field(default_factory=dict)
    rows: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    app: Int32s = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    seen: Int32s = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int32))
    gpus: Int32s = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    kinds: Int8s = field(default_factory=lambda: np.zeros(0, dtype=np.int8))
    perf: PerfModel | None = None
    capacity: tuple[int, ...] = ()


def inputs_of(snapshot: Snapshot) -> Int32s:
    """All that, beside the leases, decides what an app keeps: a column for each job."""
    columns = snapshot.columns
    shape = (columns.batch_size, columns.measured, columns.gpus, columns.min_gpus, columns.max_gpus)
    able = (columns.speeds > 0).T.astype(np.int32)
    return np.concatenate([np.stack([*shape, columns.held, columns.kind, columns.partner]).astype(np.int32), able])


@dataclass(slots=True, eq=False)
class Settled:
    """The settled apps of a decision: by position whether a job is of one, its GPUs and their kind."""

    apps: dict[int, SettledApp]
    jobs: Flags
    gpus: Int32s
    kinds: Int8s

    @classmethod
    def none(cls, snapshot: Snapshot) -> "Settled":
        """Return a value in which no app is settled."""
        count = len(snapshot.columns)
        gpus, kinds = np.zeros(count, dtype=np.int32), np.full(count, -1, dtype=np.int8)
        return cls({}, np.zeros(count, dtype=np.bool_), gpus, kinds)

    @classmethod
    def of(cls, snapshot: Snapshot, before: SettledCarry, leases: Mapping[tuple[int, int], object]) -> "Settled":
        """The apps whose jobs and ``leases`` by app and kind are those of the last decision."""
        columns, cluster = snapshot.columns, snapshot.cluster
        if not before.apps or before.perf is not snapshot.perf or before.capacity != cluster.capacity:
            return cls.none(snapshot)
        at, same = match_rows(before.rows, columns.rows)
        same &= (before.seen[:, at] == inputs_of(snapshot)).all(axis=0)
        changed = set(columns.app[~same].tolist())
        changed.update(before.app[~match_rows(columns.rows, before.rows)[1]].tolist())
        apps = {
            app: settled
            for app, settled in before.apps.items()
            if app not in changed and all(leases.get((app, k)) is had for k, had in enumerate(settled.leases))
        }
        jobs = np.isin(columns.app, np.fromiter(apps, dtype=np.int32, count=len(apps)))
        return cls(apps, jobs, before.gpus[at], before.kinds[at])

    def on(self, kind: int) -> Indices:
        """The jobs of settled apps that have GPUs of a kind."""
        return np.flatnonzero(self.jobs & (self.kinds == kind))

    def drop(self, app: int, jobs: Indices) -> None:
        """Remove an app with these jobs from the settled ones."""
        if self.apps.pop(app, None) is not None:
            self.jobs[jobs] = False

    def clear(self) -> None:
        """Remove all apps from the settled ones."""
        self.apps.clear()
        self.jobs[:] = False
