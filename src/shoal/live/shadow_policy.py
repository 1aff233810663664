"""A shadow policy: asked on the same snapshots as the deciding one, in a thread of its own; it changes nothing."""

import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from msgspec import structs

from shoal.core.decision import Verdicts
from shoal.core.interfaces import MovePlanner, Placer, Policy
from shoal.core.snapshot import Snapshot
from shoal.core.units import Seconds, TenantId
from shoal.engine.guard import TooSlow
from shoal.engine.loop import judge
from shoal.live.foreign_names import without_foreign_names
from shoal.live.time_limit import CpuLimit
from shoal.live.time_words import ClockWords
from shoal.wire.policy_messages import ShadowDecision, ShadowDifference, ShadowRow, ShadowUse

_SHARE_OF_CORE = 0.05
"""Most of a core that it may take: it skips decisions that come faster."""
_MOST_SECONDS = 10.0
"""CPU seconds of one decision after which it is ended."""
_MOST_DECISIONS, _MOST_JOBS = 20, 20
"""Differing decisions that are kept, and jobs of each."""


@dataclass(slots=True)
class ShadowPolicy:
    """Keeps how the decisions of ``policy`` differ from those that are made; ``offer`` never blocks the loop."""

    name: str
    policy: Policy
    placer: Placer
    move_planner: MovePlanner
    epoch: float
    since: Seconds
    row: ShadowRow = field(init=False)
    _decisions: deque[ShadowDecision] = field(default_factory=lambda: deque(maxlen=_MOST_DECISIONS))
    _use: dict[TenantId, list[float]] = field(default_factory=dict)
    _granting: Mapping[TenantId, tuple[int, int]] = field(default_factory=dict)
    """By tenant, the GPUs granted by the last decision compared, and those the shadow would have granted."""
    _compared_at: Seconds = 0.0
    _carry: object | None = None
    _next: tuple[int, Snapshot, Verdicts] | None = None
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _closed: bool = False

    def __post_init__(self) -> None:
        self.row = ShadowRow(policy=self.name, since=self.epoch + self.since)

    def start(self) -> None:
        """Begin to compare decisions."""
        threading.Thread(target=self._run, name="shadow", daemon=True).start()

    def close(self) -> None:
        """Compare no further decision."""
        with self._changed:
            self._closed, self._next = True, None
            self._changed.notify()

    def offer(self, number: int, snapshot: Snapshot, verdicts: Verdicts) -> None:
        """Take a decision to compare; one that still waits is skipped."""
        with self._changed:
            if self._closed:
                return
            if self._next is not None:
                self.row = _with(self.row, skipped=self.row.skipped + 1)
            self._next = number, snapshot, verdicts
            self._changed.notify()

    def _run(self) -> None:
        limit = CpuLimit()
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or self._next is not None)
                    if self._next is None:
                        return
                    offered, self._next = self._next, None
                _, seconds = limit.run(lambda offered=offered: self.compare(*offered), _MOST_SECONDS)  # type: ignore[misc]
                self.row = _with(self.row, seconds=self.row.seconds + seconds)
                time.sleep(seconds / _SHARE_OF_CORE)
        except TooSlow:
            self._fail(f"one decision took more than {_MOST_SECONDS:.0f} s")
        except Exception as error:
            cause = error.__cause__ or error
            self._fail(f"{type(cause).__name__}: {cause}")
        finally:
            limit.close()

    def _fail(self, why: str) -> None:
        self.close()
        self.row = _with(self.row, failed=why)

    def compare(self, number: int, snapshot: Snapshot, made: Verdicts) -> None:
        """Ask the policy about a snapshot, and keep how its verdicts differ from those that were made."""
        asked = replace(snapshot, carry=self._carry, overran=None)
        judgement = judge(asked, self.policy, self.placer, self.move_planner)
        self._carry, other = judgement.decision.carry, judgement.verdicts
        differing = np.flatnonzero(made.gpus != other.gpus)
        self._charge(snapshot, made, other)
        if len(differing):
            words, owners = ClockWords(self.epoch, snapshot.now), {spec.id: spec.tenant for spec in snapshot.specs}
            jobs = [
                ShadowDifference(
                    snapshot.ids[i],
                    snapshot.specs[i].tenant,
                    int(made.gpus[i]),
                    int(other.gpus[i]),
                    without_foreign_names(other.reason(i).sentence(words), snapshot.specs[i].tenant, owners.get),
                )
                for i in differing[:_MOST_JOBS].tolist()
            ]
            at = self.epoch + snapshot.now
            self._decisions.appendleft(ShadowDecision(number=number, at=at, differing=len(differing), jobs=jobs))
        here, there = made.gpus[differing], other.gpus[differing]
        row = self.row
        self.row = _with(
            row,
            compared=row.compared + 1,
            same=row.same + (not len(differing)),
            would_run=row.would_run + int((here == 0).sum()),
            would_wait=row.would_wait + int((there == 0).sum()),
            other_size=row.other_size + int(((here > 0) & (there > 0)).sum()),
            tenants=[ShadowUse(tenant, *use) for tenant, use in sorted(self._use.items())],
            decisions=list(self._decisions),
        )

    def _charge(self, snapshot: Snapshot, made: Verdicts, other: Verdicts) -> None:
        """Add the GPU-seconds granted by the last verdicts until now, and keep the grants that hold from now on."""
        elapsed = snapshot.now - self._compared_at
        for tenant, granted in self._granting.items():
            use = self._use.setdefault(tenant, [0.0, 0.0])
            use[0], use[1] = use[0] + elapsed * granted[0], use[1] + elapsed * granted[1]
        granting: dict[TenantId, tuple[int, int]] = {}
        for spec, gpus, would in zip(snapshot.specs, made.gpus.tolist(), other.gpus.tolist(), strict=True):
            if gpus or would:
                before = granting.get(spec.tenant, (0, 0))
                granting[spec.tenant] = before[0] + gpus, before[1] + would
        self._granting, self._compared_at = granting, snapshot.now


def _with(row: ShadowRow, **changes: object) -> ShadowRow:
    return structs.replace(row, **changes)


def as_seen(row: ShadowRow, tenant: TenantId | None) -> ShadowRow:
    """Return an account as a tenant (None: an admin) may see it: differences of its own jobs alone."""
    if tenant is None:
        return row
    decisions = []
    for decision in row.decisions:
        jobs = [job for job in decision.jobs if job.tenant == tenant]
        if jobs:
            one = ShadowDecision(number=decision.number, at=decision.at, differing=len(jobs), jobs=jobs)
            decisions.append(one)
    return _with(row, decisions=decisions, tenants=[use for use in row.tenants if use.tenant == tenant])
