"""Samples of how much of the cluster is used and by which tenants, once a minute, for the last day."""

import threading
from collections import deque
from dataclasses import dataclass, field

import msgspec

from shoal.serve.control_plane_api import ControlPlaneAPI
from shoal.wire.watch_messages import FairnessSample, UsageRow

_EVERY_SECONDS = 60.0
_SAMPLES = 24 * 60
_FAIRNESS_EVERY = 5
"""Samples of use to one of fairness."""
_MOST_TENANTS = 20
"""Most tenants of one sample, those that hold most; the others are summed."""

OTHERS = "others"


@dataclass(slots=True)
class UsageSampler:
    """Takes samples in a thread after ``start``; they are in memory, and begin anew with the control plane."""

    control_plane: ControlPlaneAPI
    samples: deque[UsageRow] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    fairness: deque[FairnessSample] = field(default_factory=lambda: deque(maxlen=_SAMPLES // _FAIRNESS_EVERY))
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
        found = [*self.samples, self.sample()]
        if tenant is None:
            return found
        return [msgspec.structs.replace(row, held=_as_seen(row, tenant)) for row in found]

    def fairness_rows(self, tenant: str | None) -> list[FairnessSample]:
        """Return the samples of fairness and the present one; a tenant sees itself."""
        found = [*self.fairness, self._fairness_sample()]
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
        at = cluster.now // _EVERY_SECONDS * _EVERY_SECONDS
        spent = {name: round(spent, 2) for name, spent in self._spent.items()}
        return FairnessSample(at=at, up=cluster.up_gpus, rows=kept, spent=spent)

    def take(self) -> None:
        """Take the samples of one minute."""
        self.samples.append(self.sample())
        for row in self.control_plane.pages.fairness(None):
            if row.app is None and row.dollars:
                self._spent[row.tenant] = self._spent.get(row.tenant, 0.0) + row.dollars * _EVERY_SECONDS / 3600.0
        self._taken += 1
        if self._taken % _FAIRNESS_EVERY == 1:
            self.fairness.append(self._fairness_sample())

    def _run(self) -> None:
        self.take()
        while not self._stopped.wait(_EVERY_SECONDS):
            self.take()


def _as_seen(row: UsageRow, tenant: str) -> dict[str, int]:
    own = row.held.get(tenant, 0)
    return {name: gpus for name, gpus in ((tenant, own), (OTHERS, sum(row.held.values()) - own)) if gpus}
