"""Samples of how much of the cluster is used and by which tenants, for the last day: every 5 s of late, then fewer."""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Generic, TypeVar

import msgspec

from shoal.serve.control_plane_api import ControlPlaneAPI
from shoal.wire.watch_messages import FairnessSample, UsageRow

_EVERY_SECONDS = 5.0
_A_MINUTE = 12
"""Samples of use to one of fairness: those take longer."""
_MINUTE_SECONDS = _A_MINUTE * _EVERY_SECONDS
_USE_LEVELS = (1, 120), (_A_MINUTE, 120), (5 * _A_MINUTE, 288)
"""Every 5 s for 10 min, every minute for 2 h, every 5 min for a day."""
_FAIRNESS_LEVELS = (1, 30), (5, 288)
"""Every minute for half an hour, every 5 min for a day."""
_MOST_TENANTS = 20
"""Most tenants of one sample, those that hold most; the others are summed."""

OTHERS = "others"

_Sample = TypeVar("_Sample", UsageRow, FairnessSample)


class ThinnedSamples(Generic[_Sample]):
    """Samples in order of time, the older the fewer: level (n, most) keeps the latest ``most`` of every n-th sample."""

    def __init__(self, levels: Sequence[tuple[int, int]]) -> None:
        self._levels: list[tuple[int, deque[_Sample]]] = [(every, deque(maxlen=most)) for every, most in levels]
        self._added = 0

    def add(self, sample: _Sample) -> None:
        """Add the latest sample."""
        for every, kept in self._levels:
            if self._added % every == 0:
                kept.append(sample)
        self._added += 1

    def rows(self) -> list[_Sample]:
        """Return the samples of each level that are older than those of the levels before it."""
        found: list[_Sample] = []
        for _, kept in self._levels:
            copied, since = list(kept), found[0].at if found else inf  # a copy: ``add`` runs in a thread of its own
            found = [sample for sample in copied if sample.at < since] + found
        return found


@dataclass(slots=True)
class UsageSampler:
    """Takes samples in a thread after ``start``; they are in memory, and begin anew with the control plane."""

    control_plane: ControlPlaneAPI
    samples: ThinnedSamples[UsageRow] = field(default_factory=lambda: ThinnedSamples(_USE_LEVELS))
    fairness: ThinnedSamples[FairnessSample] = field(default_factory=lambda: ThinnedSamples(_FAIRNESS_LEVELS))
    _spent: dict[str, float] = field(default_factory=dict)
    """Dollars by tenant since ``start``."""
    _taken: int = 0
    _stopped: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Begin to take samples."""
        threading.Thread(target=self._run, name="usage", daemon=True).start()

    def stop(self) -> None:
        """Stop taking samples."""
        self._stopped.set()

    def sample(self) -> UsageRow:
        """Return the GPUs in use now, by tenant, and the numbers of running and waiting jobs."""
        cluster = self.control_plane.cluster()
        rows = sorted(self.control_plane.share(None), key=lambda row: -row.held)
        held = {row.tenant: row.held for row in rows[:_MOST_TENANTS] if row.held}
        rest = sum(row.held for row in rows[_MOST_TENANTS:])
        return UsageRow(
            at=round(cluster.now),
            up=cluster.up_gpus,
            used=cluster.used_gpus,
            running=cluster.running,
            waiting=cluster.waiting,
            held={**held, OTHERS: rest} if rest else held,
        )

    def rows(self, tenant: str | None) -> list[UsageRow]:
        """Return the samples and the present usage; a tenant sees itself, and all others as one."""
        found = [*self.samples.rows(), self.sample()]
        if tenant is None:
            return found
        return [msgspec.structs.replace(row, held=_as_seen(row, tenant)) for row in found]

    def fairness_rows(self, tenant: str | None) -> list[FairnessSample]:
        """Return the samples of fairness and the present one; a tenant sees itself."""
        found = [*self.fairness.rows(), self._fairness_sample()]
        if tenant is None:
            return found
        return [
            msgspec.structs.replace(
                each,
                rows=[row for row in each.rows if row.tenant == tenant],
                spent={name: spent for name, spent in each.spent.items() if name == tenant},
            )
            for each in found
        ]

    def _fairness_sample(self) -> FairnessSample:
        cluster, rows = self.control_plane.cluster(), self.control_plane.pages.fairness(None)
        kept = sorted(rows, key=lambda row: -row.held)[: 2 * _MOST_TENANTS]
        at = cluster.now // _MINUTE_SECONDS * _MINUTE_SECONDS
        spent = {name: round(spent, 2) for name, spent in self._spent.items()}
        return FairnessSample(at=at, up=cluster.up_gpus, rows=kept, spent=spent)

    def take(self) -> None:
        """Take a sample of use, and once a minute one of fairness."""
        self.samples.add(self.sample())
        if self._taken % _A_MINUTE == 0:
            for row in self.control_plane.pages.fairness(None):
                if row.app is None and row.dollars:
                    self._spent[row.tenant] = self._spent.get(row.tenant, 0.0) + row.dollars * _MINUTE_SECONDS / 3600.0
            self.fairness.add(self._fairness_sample())
        self._taken += 1

    def _run(self) -> None:
        self.take()
        while not self._stopped.wait(_EVERY_SECONDS):
            self.take()


def _as_seen(row: UsageRow, tenant: str) -> dict[str, int]:
    own = row.held.get(tenant, 0)
    return {name: gpus for name, gpus in ((tenant, own), (OTHERS, sum(row.held.values()) - own)) if gpus}
