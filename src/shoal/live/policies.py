"""The policies of a live cluster: the one that decides, which operators may switch, and a shadow policy."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from math import inf
from queue import Empty, SimpleQueue
from typing import Any

from shoal.core.errors import InputError
from shoal.core.snapshot import Snapshot
from shoal.core.topology import topology_of
from shoal.core.units import TenantId
from shoal.engine.loop import Judgement, Loop
from shoal.engine.replay import Scheduler
from shoal.live.backend import LiveBackend
from shoal.live.shadow_policy import ShadowPolicy, as_seen
from shoal.policy.registry import is_policy_file, parse_policy
from shoal.scenario.scenario import Scenario
from shoal.store.codec import pack_header
from shoal.store.journal import SqliteJournal
from shoal.wire.policy_messages import PolicyInForce


@dataclass(slots=True)
class LivePolicies:
    """Switches the policy between two cycles of the loop, and offers each decision to the shadow policy."""

    backend: LiveBackend
    journal: SqliteJournal
    epoch: float
    _shadow: ShadowPolicy | None = None
    _wanted: "SimpleQueue[tuple[str, Future[None]]]" = field(default_factory=SimpleQueue)

    def switch(self, policy: str) -> "Future[None]":
        """Let this policy decide from the next decision on; the future resolves when that is durable."""
        _check(policy)
        done: Future[None] = Future()
        self._wanted.put((policy, done))
        self.backend.record()  # wakes the loop
        return done

    def shadow(self, policy: str | None) -> None:
        """Ask this policy beside the deciding one from now on, in place of the last shadow; None: ask none."""
        made = None
        if policy is not None:
            _check(policy)
            scheduler = self._scenario(policy).make_scheduler()
            parts = scheduler.policy, scheduler.placer, scheduler.move_planner
            made = ShadowPolicy(policy, *parts, self.epoch, self.backend.clock.now())
            made.start()
        before, self._shadow = self._shadow, made
        if before is not None:
            before.close()

    def in_force(self, policy: str, tenant: TenantId | None) -> PolicyInForce:
        """Return the deciding policy and the shadow's figures, as a tenant may see them."""
        shadow = self._shadow
        return PolicyInForce(policy, None if shadow is None else as_seen(shadow.row, tenant))

    def watch(self, snapshot: Snapshot, judgement: Judgement) -> None:
        """Offer a decision to the shadow policy."""
        if (shadow := self._shadow) is not None:
            shadow.offer(snapshot.cycle, snapshot, judgement.verdicts)

    def take(self, loop: Loop, scheduler: Scheduler, adopt: Callable[[Scheduler, str], None]) -> None:
        """Put the last policy that was asked for in force; called by the loop's thread between two cycles.

        Like a restart, a switch writes a header into the journal, and the new policy begins without a carry. ``adopt``
        makes the header durable.
        """
        asked = []
        while True:
            try:
                asked.append(self._wanted.get_nowait())
            except Empty:
                break
        if not asked:
            return
        policy = asked[-1][0]
        scenario = self._scenario(policy)
        settings = self._header(scenario, scheduler)
        self.journal.settings = settings
        self.journal.append(pack_header(settings))
        scheduler = replace(scheduler, policy=scenario.make_policy())
        scheduler.state.decide_by(settings)
        scheduler.state.carry = None
        loop.policy, loop.review_at, loop.verdict_codes = scheduler.policy, -inf, loop.verdict_codes[:0]
        adopt(scheduler, policy)
        for _, done in asked:
            done.set_result(None)

    def _scenario(self, policy: str) -> Scenario:
        return replace(Scenario.of_settings(self.journal.settings), policy=policy)

    def _header(self, scenario: Scenario, scheduler: Scheduler) -> dict[str, Any]:
        """Return the header of the present cluster, with the nodes that joined, under another policy."""
        before, nodes = self.journal.settings, scheduler.state.topology.nodes
        declared = {name for name, *_ in before["cluster_nodes"]}
        joined = {*before.get("joined", ()), *(node.name for node in nodes if node.name not in declared)}
        grown = replace(scenario, cluster=topology_of(nodes, before["prices"]))
        kept: dict[str, Any] = {key: before[key] for key in ("epoch", "lease") if key in before}
        return {**grown.settings("live"), **kept, "opened": time.time(), "joined": sorted(joined)}


def _check(policy: str) -> None:
    if is_policy_file(policy):
        hint = "names a file, which is never loaded on a request; choose a policy of `shoal policies`"
        raise InputError("policy", policy, hint)
    parse_policy(policy)
