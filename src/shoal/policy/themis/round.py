"""One round between the agents and the arbiter on a snapshot, in the making: who keeps what, and who is given more.

Leases are an app's, not a job's: when one of its jobs is done the GPUs go to another of its jobs, or are kept for its
next phase while the last jobs of this one run; only what neither can use is auctioned before the lease is over.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import TypeAlias

import numpy as np

from shoal.core.arrays import Flags, Floats, Int8s, Int32s, Int64s
from shoal.core.topology import Placement
from shoal.core.units import Seconds
from shoal.perf.app_valuation import Use
from shoal.policy.base import round_end
from shoal.policy.themis.agent import AppAgent, divided
from shoal.policy.themis.apps import Apps
from shoal.policy.themis.arbiter import Arbiter
from shoal.policy.themis.carry import AppHistory, AppValuation, Lease, ThemisCarry
from shoal.policy.themis.protocol import AppReport, Award, GpuOffer, Level, Seats
from shoal.policy.themis.seats import both, seats_by_job, taken_from

Bent: TypeAlias = Callable[[AppAgent, Apps], AppAgent]
"""What an experiment makes of an agent."""


@dataclass(frozen=True, slots=True)
class Invitation:
    """Who was invited to an auction: how many apps, with which ρ at least, and to how many GPUs."""

    bidders: int
    rho: float
    gpus: int


@dataclass(frozen=True, slots=True, eq=False)
class Stand:
    """How an app stands before an auction: its jobs in order, how it can use GPUs, and those it keeps by lease.

    ``counts`` are the GPUs kept by job, ``awaited`` those kept beside them for the phase after this one; ``spare``
    seats are kept for jobs that are to join.
    """

    jobs: list[int]
    use: Use
    kept: int
    counts: Int64s
    awaited: int = 0
    spare: Seats = ()


@dataclass(slots=True)
class Round:
    """By position the GPUs given, their kind (−1: none) and who asks for one node; ``current`` is the kind held now.

    ``awards`` hold by app and kind what it was given, ``cuts`` by kind who bid, ``rhos`` by app how it fares.
    """

    apps: Apps
    lease: Seconds
    gpus: Int32s = field(init=False)
    kinds: Int8s = field(init=False)
    near: Flags = field(init=False)
    pinned: dict[int, Placement] = field(default_factory=dict)
    leases: dict[tuple[int, int], Lease] = field(init=False)
    awards: dict[tuple[int, int], Award] = field(default_factory=dict)
    cuts: dict[int, Invitation] = field(default_factory=dict)
    rhos: dict[int, float] = field(default_factory=dict)
    pasts: dict[int, AppHistory] = field(init=False)
    current: list[int] = field(init=False)

    def __post_init__(self) -> None:
        count = len(self.apps.snapshot.columns)
        self.gpus = np.zeros(count, dtype=np.int32)
        self.kinds = np.full(count, -1, dtype=np.int8)
        self.near = np.zeros(count, dtype=bool)
        self.current = self.apps.snapshot.columns.kind.tolist()
        self.pasts = dict(self.apps.pasts)
        self.leases = self._running_leases()

    def _running_leases(self) -> dict[tuple[int, int], Lease]:
        """The leases that have not ended, of apps that are there."""
        snapshot, before = self.apps.snapshot, self.apps.before
        now, columns = snapshot.now, snapshot.columns
        if before.live:
            known = {
                key: tuple((gpus, end) for gpus, end in lease if end > now)
                for key, lease in before.leases.items()
                if key[0] in self.apps.members
            }
            return {key: lease for key, lease in known.items() if lease}
        # What another policy started, or was started before all was forgotten, has been leased since it began.
        begun: dict[tuple[int, int], list[tuple[int, Seconds]]] = {}
        for i in np.flatnonzero((columns.held > 0) & (columns.partner < 0)).tolist():
            end = float(columns.since[i]) + self.lease
            if end > now:
                begun.setdefault((int(columns.app[i]), int(columns.kind[i])), []).append((int(columns.held[i]), end))
        return {key: tuple(sorted(lease, key=lambda part: part[1])) for key, lease in begun.items()}

    def auction(self, kind: int, arbiter: Arbiter, bent: Bent, *, named: bool) -> None:
        """Give apps what they keep of a kind, and auction the rest."""
        lessees, offer = self._lessees_and_offer(kind)
        sizes = self._sizes(kind, lessees) if offer.gpus else {}
        wanting = {app: more for app, more in sizes.items() if more and more[0] <= offer.gpus}
        reports = [AppReport(app, self._rho(app, kind, lessees.get(app)), more) for app, more in wanting.items()]
        if reports:
            invited = arbiter.invited(reports, len(self.apps.members))
            agents = {app: self._agent(app, kind, lessees.get(app)) for app in wanting if app in invited}
            bidders = {app: bent(agent, self.apps) for app, agent in agents.items()}
            bids = [agent.bid_machines(offer) if named else agent.bid(offer) for agent in bidders.values()]
            snapshot = self.apps.snapshot
            chance = np.random.default_rng([snapshot.seed, snapshot.cycle, kind])
            settled = arbiter.settle(offer, bids, [r for r in reports if r.app not in invited], chance)
            self.cuts[kind] = Invitation(len(bids), min(self.rhos[app] for app in bidders), offer.gpus)
            self.awards |= {(app, kind): award for app, award in settled.awards.items()}
            for app, bidder in bidders.items():
                self._keep(app, bidder, agents[app])
        given = {app for (app, k), award in self.awards.items() if k == kind and award.gpus}
        for app in sorted(given | {app for app, k in self.leases if k == kind}):
            stand = lessees.get(app) or self._stand(app, kind, 0)
            if stand is not None:
                self._divide(app, kind, stand)

    def ends(self) -> Floats:
        """By position the end of the first lease of the app on the job's kind; inf for a job without GPUs."""
        ends = np.full(len(self.gpus), np.inf)
        for (app, kind), lease in self.leases.items():
            jobs = self.apps.members[app]
            ends[jobs[self.kinds[jobs] == kind]] = lease[0][1]
        return ends

    def review_at(self) -> Seconds:
        """The end of the first lease, while anybody could use more than it has."""
        columns = self.apps.snapshot.columns
        wants = (self.gpus == 0) | ((self.gpus < columns.max_gpus) & (columns.min_gpus < columns.max_gpus))
        return min((lease[0][1] for lease in self.leases.values()), default=inf) if wants.any() else inf

    def remembered(self) -> ThemisCarry:
        """What the next round is to know."""
        apps, columns, now = self.apps, self.apps.snapshot.columns, self.apps.snapshot.now
        done = columns.done * apps.unit
        total, pace = done + apps.left * apps.unit, columns.rate * apps.unit
        for array in (done, total, pace):
            array.flags.writeable = False
        crowd, app = apps.before.crowd_at(now), columns.app.astype(np.intp)
        rows, most, live = columns.rows, columns.max_gpus, len(apps.members)
        return ThemisCarry(now, live, crowd, self.pasts, self.leases, rows, app, most, done, total, pace, apps.reaches)

    def _until(self) -> Seconds:
        """When a lease given now ends: with the round that has begun for at most half of its time, or the next."""
        return round_end(self.apps.snapshot.now + 0.5 * self.lease, self.lease)

    def _lessees_and_offer(self, kind: int) -> tuple[dict[int, Stand], GpuOffer]:
        """How every app stands that has a lease on GPUs of a kind, and what is left of it to auction."""
        snapshot = self.apps.snapshot
        cluster, columns, free = snapshot.cluster, snapshot.columns, dict(enumerate(snapshot.free_gpus.node_free))
        free = {n: free[n] for n, k in enumerate(cluster.node_kind) if k == kind and n not in cluster.down}
        stands = self._lessees(kind)
        held = np.zeros(len(columns), dtype=np.int64)
        for stand in stands.values():
            held[stand.jobs] = stand.counts
        for i in np.flatnonzero((columns.held > 0) & (columns.kind == kind)).tolist():
            seats, partner = snapshot.placement(i), snapshot.position_of(int(columns.partner[i]))
            if seats is not None and not 0 <= partner < i:  # two who share GPUs give them up once
                leaves = seats.gpus - min(int(held[i]), seats.gpus)
                for node, count in sorted(seats.seats, key=lambda seat: seat[1]) if leaves else ():
                    free[node] = free.get(node, 0) + min(count, leaves)
                    leaves -= min(count, leaves)
        more = np.maximum(held - np.where(columns.kind == kind, columns.held, 0), 0)
        joining = set(columns.app[more > 0].tolist())
        for app, stand in stands.items():
            if app in joining:
                stands[app] = replace(stand, spare=taken_from(free, int(more[stand.jobs].sum())).seats)
            taken_from(free, stand.awaited)
        places = tuple((n, cluster.nodes[n].rack, gpus) for n, gpus in free.items() if gpus)
        return stands, GpuOffer(kind, places, self._until())

    def _sizes(self, kind: int, lessees: Mapping[int, Stand]) -> dict[int, tuple[int, ...]]:
        """By app the further GPUs of a kind that it could use, ascending."""
        sizes: dict[int, tuple[int, ...]] = {}
        for app in self.apps.members:
            stand = lessees.get(app)
            jobs = [] if stand is not None else self._open(app, kind)
            if stand is not None:
                sizes[app] = stand.use.beyond(stand.kept)
            elif jobs:
                sizes[app] = self.apps.use(kind, jobs).beyond(0)
        return sizes

    def _lessees(self, kind: int) -> dict[int, Stand]:
        """How apps under lease stand; one on GPUs that are lost is good for others as long as there are any idle."""
        columns = self.apps.snapshot.columns
        here = np.where((columns.kind == kind) & (columns.partner < 0), columns.held, 0)
        idle, stands = self.apps.snapshot.cluster.capacity[kind] - int(here.sum()), {}
        for app in sorted(app for app, k in self.leases if k == kind):
            jobs, leased = self.apps.members[app], sum([gpus for gpus, _ in self.leases[app, kind]])
            held = int(here[jobs[0]] if len(jobs) == 1 else here[jobs].sum())
            stand = self._stand(app, kind, min(leased, held + idle))
            if stand is not None:
                stands[app] = stand
                idle -= max(stand.kept + stand.awaited - held, 0)
        return stands

    def _open(self, app: int, kind: int) -> list[int]:
        """An app's jobs that run on a kind, then those that could."""
        reach = self.apps.reach
        jobs = [
            i
            for i in self.apps.members[app].tolist()
            if self.kinds[i] < 0 and reach(i, kind)[0] and not self._keeps_elsewhere(i, app, kind)
        ]
        if len(jobs) > 1:
            jobs.sort(key=lambda i: (self.current[i] != kind, i))
        return jobs

    def _stand(self, app: int, kind: int, leased: int) -> Stand | None:
        """How an app stands on a kind, keeping what it can use of so many leased GPUs; None if no job could run."""
        jobs = self._open(app, kind)
        if not jobs:
            return None
        use = self.apps.use(kind, jobs)
        kept = int(use.gpus[min(leased, len(use.gpus) - 1)])
        counts = self._counts(kind, jobs, kept) if kept else np.zeros(len(jobs), dtype=np.int64)
        used = int(counts.sum())
        # Once all that is left of a phase runs, the next is near, and would find the GPUs of this one gone.
        awaited = min(leased, self.apps.wanted_next(app)) - used if used and counts.all() else 0
        return Stand(jobs, use, used, counts, max(awaited, 0))

    def _keeps_elsewhere(self, i: int, app: int, kind: int) -> bool:
        current = self.current[i]
        return current not in (-1, kind) and (app, current) in self.leases

    def _counts(self, kind: int, jobs: Sequence[int], gpus: int) -> Int64s:
        columns = self.apps.snapshot.columns
        running = np.where(columns.kind[jobs] == kind, columns.held[jobs], 0)
        counts = divided(gpus, [self.apps.reach(i, kind) for i in jobs], running)
        return self._quickened(kind, jobs, counts)

    def _quickened(self, kind: int, jobs: Sequence[int], counts: Int64s) -> Int64s:
        """The same without GPUs that slow their job down, which go to those of the others that they make faster."""
        quick, reach = counts.copy(), self.apps.reach
        for at, count in enumerate(counts.tolist()):
            if reach(jobs[at], kind)[0] < count < reach(jobs[at], kind)[1]:
                quick[at] = self.apps.quickest(jobs[at], kind, count)
        spare = int((counts - quick).sum())
        for at, i in enumerate(jobs):
            if not spare:
                break
            more = self.apps.quickest(i, kind, int(quick[at]) + spare) - int(quick[at])
            quick[at] += more
            spare -= more
        return quick

    def _agent(self, app: int, kind: int, stand: Stand | None) -> AppAgent:
        """The agent of an app that could use GPUs of a kind; without a stand it keeps none."""
        if stand is None:
            return self.apps.agent(app, kind, self._open(app, kind), 0)
        return self.apps.agent(app, kind, stand.jobs, stand.kept)

    def _rho(self, app: int, kind: int, stand: Stand | None) -> float:
        """ρ if it is passed over: by the valuation the app gave last, unless its jobs are others now.

        What is won now binds for a lease, so until that ends the app is taken to have what it keeps, and from then on,
        since nothing held now says what comes, all it can use. So ρ tells what could no longer be made good after this
        auction. It rises with every second an app waits, the faster the shorter the app is; short ones are invited
        before a lease of waiting has made them the worst.
        """
        valuation, said = self.pasts[app].valuation, self.apps.said(app)
        spoken = None if said is None else said.at
        if valuation is None or valuation.jobs != self.apps.jobs(app) or valuation.heard != spoken:
            agent = self._agent(app, kind, stand)
            valuation = self._keep(app, agent, agent)
        wait, kept = self._until() - self.apps.snapshot.now, stand.kept if stand is not None else 0
        self.rhos[app] = self.apps.rho(app, valuation, wait, kept)
        return self.rhos[app]

    def _keep(self, app: int, bidder: AppAgent, agent: AppAgent) -> AppValuation:
        """Remember what the app said just now as a bidder, and what it knows of distance and reckoned in truth."""
        left, past, jobs = bidder.left, self.pasts[app], self.apps.jobs(app)
        known = past.valuation
        same = known is not None and known.left is left and known.jobs == jobs and past.slowdown == agent.slowdown
        if known is not None and same and not known.spent:  # it has waited since it last said so
            return known
        left.flags.writeable = False
        valuation = AppValuation(jobs, left, bidder.least, bidder.fastest, heard=past.heard[0] if past.heard else None)
        self.pasts[app] = replace(past, slowdown=agent.slowdown, valuation=valuation, reckoning=agent.reckoning)
        return valuation

    def _divide(self, app: int, kind: int, stand: Stand) -> None:
        """Divide what the app has now among its jobs, and write its leases down."""
        award = self.awards.get((app, kind))
        won = award.gpus if award is not None else 0
        counts = self._counts(kind, stand.jobs, stand.kept + won) if won else stand.counts
        given, columns = counts > 0, self.apps.snapshot.columns
        jobs = np.array(stand.jobs)
        self.gpus[jobs], self.kinds[jobs[given]] = counts, kind
        if award is not None and won:
            running = np.where(columns.kind[jobs] == kind, columns.held[jobs], 0)
            self.near[jobs] = (counts > running) & (counts > 1) & (award.level is Level.MACHINE)
            if award.seats:
                self._pin(stand, counts, both(Placement(stand.spare), Placement(award.seats)).seats)
        kept = _trimmed(self.leases.pop((app, kind), ()), stand.kept + stand.awaited)
        lease = (*kept, *(((won, self._until()),) if won else ()))
        if lease:
            self.leases[app, kind] = lease

    def _pin(self, stand: Stand, counts: Int64s, seats: Seats) -> None:
        """Seats of the bundle for the GPUs that jobs are given beside those they keep.

        Where an app takes GPUs from one of its jobs for another, placement finds the seats.
        """
        snapshot = self.apps.snapshot
        more = counts - stand.counts
        if (more < 0).any() or int(more.sum()) > sum(count for _, count in seats):
            return
        wanted = {i: n for i, n in zip(stand.jobs, more.tolist(), strict=True) if n}
        kept = {i: n for i, n in zip(stand.jobs, stand.counts.tolist(), strict=True) if n}
        before = {i: snapshot.placement(i) for i in wanted}
        for i, new in seats_by_job(seats, wanted, before).items():
            own = before[i]
            if i not in kept:
                self.pinned[i] = new
            elif own is not None and own.gpus == kept[i]:
                self.pinned[i] = both(own, new)


def _trimmed(lease: Lease, gpus: int) -> Lease:
    """The parts of a lease that make up so many GPUs, those that end last."""
    kept: list[tuple[int, Seconds]] = []
    for count, end in reversed(lease):
        take = min(count, gpus)
        gpus -= take
        if take:
            kept.append((take, end))
    return tuple(reversed(kept))
