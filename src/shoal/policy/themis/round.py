"""The auctions of one decision: which GPUs apps keep under lease, and which they win.

A lease belongs to an app, not to a job: when one of its jobs completes, its GPUs go to another of its jobs, or are kept
for its next phase while the last jobs of this one run; only what neither can use is auctioned before the lease ends.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import TypeAlias

import msgspec
import numpy as np

from shoal.core.arrays import Flags, Floats, Indices, Int8s, Int32s, Int64s
from shoal.core.topology import Placement
from shoal.core.units import Seconds
from shoal.policy.base import round_end
from shoal.policy.themis.agent import AppAgent, divided
from shoal.policy.themis.apps import Apps
from shoal.policy.themis.arbiter import Arbiter
from shoal.policy.themis.bundle_seats import free_by_node, joined, seats_by_job, take_seats
from shoal.policy.themis.carry import AppHistory, AppValuation, Lease, ThemisCarry
from shoal.policy.themis.contest import OfferContest
from shoal.policy.themis.holding import Holding, Invitation
from shoal.policy.themis.leases import running_leases, trimmed
from shoal.policy.themis.protocol import AppReport, Award, GpuOffer, Level, Seats
from shoal.policy.themis.settled import Settled, SettledApp, SettledCarry, inputs_of
from shoal.policy.themis.single_auction import SingleBids, SingleSide
from shoal.policy.themis.single_records import SingleCarry, SingleLeases

Distortion: TypeAlias = Callable[[AppAgent, Apps], AppAgent]
"""An experiment's change to an agent."""


@dataclass(slots=True)
class AuctionRound:
    """By position: GPUs given, their kind (−1: none), whether they belong on one node, and the ``current`` kind.

    ``awards`` are by app and kind, ``invitations`` by kind, ``rhos`` by app. Apps of one job are in columns: ``sides``
    by kind, ``single_rhos`` and ``single_leases``; of them only those that got something have an award. ``began`` are
    the leases before the auctions; ``holdings`` and ``sizes`` (further GPUs that an app could use) are by kind and app,
    without those of ``settled`` apps; ``short`` are the apps with fewer GPUs than they lease.
    """

    apps: Apps
    lease: Seconds
    gpus: Int32s = field(init=False)
    kinds: Int8s = field(init=False)
    one_node: Flags = field(init=False)
    pinned: dict[int, Placement] = field(default_factory=dict)
    leases: dict[tuple[int, int], Lease] = field(init=False)
    awards: dict[tuple[int, int], Award] = field(default_factory=dict)
    invitations: dict[int, Invitation] = field(default_factory=dict)
    rhos: dict[int, float] = field(default_factory=dict)
    histories: dict[int, AppHistory] = field(init=False)
    sides: dict[int, SingleSide] = field(default_factory=dict)
    single_rhos: Floats = field(init=False)
    single_leases: SingleLeases = field(init=False)
    settled: Settled = field(init=False)
    began: Mapping[tuple[int, int], Lease] = field(init=False)
    holdings: dict[int, dict[int, Holding]] = field(default_factory=dict)
    sizes: dict[int, dict[int, tuple[int, ...]]] = field(default_factory=dict)
    short: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        count = len(self.apps.snapshot.columns)
        self.gpus = np.zeros(count, dtype=np.int32)
        self.kinds = np.full(count, -1, dtype=np.int8)
        self.one_node = np.zeros(count, dtype=bool)
        self.histories = dict(self.apps.histories)
        self.single_rhos = np.zeros(len(self.apps.singles))
        self.leases, self.single_leases = running_leases(self.apps, self.lease)
        self.began = dict(self.leases)
        snapshot, carried = self.apps.snapshot, self.apps.before.settled
        self.settled = Settled.of(snapshot, carried, self.leases) if self.apps.plain else Settled.none(snapshot)

    def auction(self, kind: int, arbiter: Arbiter, distorted: Distortion, *, named: bool) -> None:
        """Give apps the GPUs of a kind that they keep, and auction the rest."""
        side = self.sides[kind] = self._side(kind)
        offer = self._offer(kind, side)
        sizes = self.sizes[kind] = self._sizes(kind) if offer.gpus else {}
        wanting = {app: more for app, more in sizes.items() if more and more[0] <= offer.gpus}
        reports = [AppReport(app, self._rho(app, kind), more) for app, more in wanting.items()]
        singles = self._single_reports(side, offer)
        contest = OfferContest(offer, reports, side, singles, self.single_rhos[singles], arbiter, self.apps.count)
        if len(contest):
            agents = {app: self._agent(app, kind) for app in contest.own_bidders}
            bidders = {app: distorted(agent, self.apps) for app, agent in agents.items()}
            bids = {app: agent.bid_machines(offer) if named else agent.bid(offer) for app, agent in bidders.items()}
            snapshot = self.apps.snapshot
            rng = np.random.default_rng([snapshot.seed, snapshot.cycle, kind])
            settled = contest.settle(bids, self._single_bids(side, contest.single_bidders, offer), rng)
            self.invitations[kind] = Invitation(contest.bidders, contest.lowest_rho, offer.gpus)
            self.awards |= {(app, kind): award for app, award in settled.awards.items()}
            places, single = side.singles.places(list(settled.awards))
            each = zip(places.tolist(), single.tolist(), settled.awards.values(), strict=True)
            side.awards.update({place: award for place, alone, award in each if alone})
            for app, bidder in bidders.items():
                self._record(app, bidder, agents[app])
        given = {app for (app, k), award in self.awards.items() if k == kind and award.gpus} & self.apps.members.keys()
        won = {app: self._held(app, kind) for app in given}
        for app in given:
            self.settled.drop(app, self.apps.members[app])
        same = self.settled.on(kind)
        self.gpus[same], self.kinds[same] = self.settled.gpus[same], kind
        for app in sorted(given | {app for app, k in self.leases if k == kind and app not in self.settled.apps}):
            holding = won.get(app) or self._held(app, kind) or self._holding(app, kind, 0)
            if holding is not None:
                self._divide(app, kind, holding)
        self._divide_singles(kind, side)

    def ends(self) -> Floats:
        """By position the end of the app's first lease on the job's kind; infinity for a job without GPUs."""
        ends = np.full(len(self.gpus), np.inf)
        for (app, kind), lease in self.leases.items():
            jobs = self.apps.members[app]
            ends[jobs[self.kinds[jobs] == kind]] = lease[0][1]
        leases = self.single_leases
        at = np.searchsorted(self.apps.snapshot.columns.rows, leases.rows)
        runs = np.flatnonzero(self.kinds[at] == leases.kind)[::-1]  # the first of a job's leases last
        ends[at[runs]] = leases.end[runs]
        return ends

    def review_at(self) -> Seconds:
        """The end of the first lease; infinity if no job could use more GPUs than it has."""
        columns = self.apps.snapshot.columns
        wants = (self.gpus == 0) | ((self.gpus < columns.max_gpus) & (columns.min_gpus < columns.max_gpus))
        ends = min((lease[0][1] for lease in self.leases.values()), default=inf)
        return min(ends, float(self.single_leases.end.min(initial=inf))) if wants.any() else inf

    def next_carry(self) -> ThemisCarry:
        """Return the carry for the next decision."""
        apps, columns, now = self.apps, self.apps.snapshot.columns, self.apps.snapshot.now
        done = columns.done * apps.unit
        total, pace = done + apps.left * apps.unit, columns.rate * apps.unit
        for array in (done, total, pace):
            array.flags.writeable = False
        app_seconds, app = apps.before.app_seconds_at(now), columns.app.astype(np.intp)
        rows, most = columns.rows, columns.max_gpus
        by_job = (rows, app, most, done, total, pace)
        cluster, singles = apps.snapshot.cluster, apps.singles
        known = (singles.records.sealed(), self.single_leases, singles.rates)
        carried = SingleCarry(*known, apps.snapshot.perf, cluster.capacity, cluster.node_size)
        apart = (self.histories, self.leases, *by_job, apps.gpu_ranges, carried, self._next_settled())
        return ThemisCarry(now, apps.count, app_seconds, *apart)

    def _until(self) -> Seconds:
        """Return the end of a lease given now: in the first half of a lease period its end, later the next one's."""
        return round_end(self.apps.snapshot.now + 0.5 * self.lease, self.lease)

    def _next_settled(self) -> SettledCarry:
        """The apps that were awarded nothing and had all GPUs that they lease, with what they keep."""
        apps, kinds = self.apps, range(len(self.apps.snapshot.cluster.kinds))
        if not apps.plain:
            return SettledCarry()
        moved = self.short.union(app for (app, _), award in self.awards.items() if award.gpus)
        settled: dict[int, SettledApp] = {}
        for app in apps.members.keys() - moved:
            known, sizes = self.settled.apps.get(app), {k: of[app] for k, of in self.sizes.items() if app in of}
            if known is not None:
                settled[app] = known._replace(sizes={**known.sizes, **sizes}) if sizes.keys() - known.sizes else known
            elif not apps.wanted_next(app):
                kept = {k: of[app].kept for k, of in self.holdings.items() if app in of}
                settled[app] = SettledApp(tuple(self.began.get((app, k)) for k in kinds), kept, sizes)
        snapshot = apps.snapshot
        by_job = (snapshot.columns.rows, snapshot.columns.app, inputs_of(snapshot), self.gpus, self.kinds)
        return SettledCarry(settled, *by_job, snapshot.perf, snapshot.cluster.capacity)

    def _offer(self, kind: int, side: SingleSide) -> GpuOffer:
        """The offer of the GPUs of a kind that are not under lease."""
        snapshot, columns = self.apps.snapshot, self.apps.snapshot.columns
        holdings = self.holdings[kind] = self._holdings(kind, side)
        same = self.settled.on(kind)
        held = np.zeros(len(columns), dtype=np.int64)
        held[side.singles.at], held[same] = side.kept, self.settled.gpus[same]
        for holding in holdings.values():
            held[holding.jobs] = holding.counts
        free = free_by_node(snapshot, kind, self.apps.node_kind, held)
        more = np.maximum(held - np.where(columns.kind == kind, columns.held, 0), 0)
        needs = {app: holding.reserved for app, holding in holdings.items() if holding.reserved}
        for app in sorted(needs.keys() | set(columns.app[more > 0].tolist())):
            joining = int(more[columns.app == app].sum())
            spare = take_seats(free, joining).seats
            if joining and app in holdings:
                holdings[app] = replace(holdings[app], spare=spare)
            take_seats(free, needs.get(app, 0))
        cluster = snapshot.cluster
        offered = tuple((n, cluster.nodes[n].rack, gpus) for n, gpus in free.items() if gpus)
        return GpuOffer(kind, offered, self._until())

    def _sizes(self, kind: int) -> dict[int, tuple[int, ...]]:
        """By app the further GPUs of a kind that it could use, ascending."""
        sizes: dict[int, tuple[int, ...]] = {}
        for app in self.apps.members:
            known = self.settled.apps.get(app)
            if known is not None and kind in known.sizes:
                sizes[app] = known.sizes[kind]
                continue
            holding = self._held(app, kind)
            jobs = [] if holding is not None else self._open(app, kind)
            if holding is not None:
                sizes[app] = holding.use.beyond(holding.kept)
            else:
                sizes[app] = self.apps.use(kind, jobs).beyond(0) if jobs else ()
        return sizes

    def _held(self, app: int, kind: int) -> Holding | None:
        """Return an app's holding of a kind under lease; a settled app's holding is made when first asked for."""
        holding = self.holdings[kind].get(app)
        if holding is None and app in self.settled.apps and (app, kind) in self.leases:
            leased = sum([gpus for gpus, _ in self.leases[app, kind]])
            holding = self._holding(app, kind, leased)
            if holding is not None:
                self.holdings[kind][app] = holding
        return holding

    def _holdings(self, kind: int, side: SingleSide) -> dict[int, Holding]:
        """Return the holdings of apps under lease; leased GPUs that were lost are replaced by idle ones if possible."""
        columns = self.apps.snapshot.columns
        here = np.where((columns.kind == kind) & (columns.partner < 0), columns.held, 0)
        idle, holdings = self.apps.snapshot.cluster.capacity[kind] - int(here.sum()), {}
        if idle < 0:
            self.settled.clear()
        leasing = np.flatnonzero(side.open & (side.leased > 0))
        side.keep(leasing, side.leased[leasing])
        # An app that holds all that it leases needs none of the idle GPUs.
        short = leasing if idle < 0 else leasing[side.leased[leasing] > side.here[leasing]]
        single = dict(zip(side.singles.records.app[short].tolist(), short.tolist(), strict=True))
        for app in sorted([*(app for app, k in self.leases if k == kind and app not in self.settled.apps), *single]):
            n = single.get(app)
            if n is not None:
                held = side.here.item(n)
                side.keep(short[short == n], np.array([min(side.leased.item(n), held + idle)]))
                idle -= max(side.kept.item(n) - held, 0)
                continue
            jobs, leased = self.apps.members[app], sum([gpus for gpus, _ in self.leases[app, kind]])
            held = int(here[jobs[0]] if len(jobs) == 1 else here[jobs].sum())
            holding = self._holding(app, kind, min(leased, held + idle))
            if leased > held:
                self.short.add(app)
            if holding is not None:
                holdings[app] = holding
                idle -= max(holding.kept + holding.reserved - held, 0)
        return holdings

    def _open(self, app: int, kind: int) -> list[int]:
        """Return an app's jobs, not given GPUs yet, that can run on a kind; those that run on it now come first."""
        gpu_range = self.apps.gpu_range
        jobs = [
            i
            for i in self.apps.members[app].tolist()
            if self.kinds[i] < 0 and gpu_range(i, kind)[0] and not self._keeps_elsewhere(i, app, kind)
        ]
        if len(jobs) > 1:
            jobs.sort(key=lambda i: (self.apps.current[i] != kind, i))
        return jobs

    def _holding(self, app: int, kind: int, leased: int) -> Holding | None:
        """An app's holding of a kind, of up to ``leased`` GPUs; None if no job of the app can run there."""
        jobs = self._open(app, kind)
        if not jobs:
            return None
        use = self.apps.use(kind, jobs)
        kept = int(use.gpus[min(leased, len(use.gpus) - 1)])
        counts = self._counts(kind, jobs, kept) if kept else np.zeros(len(jobs), dtype=np.int64)
        given: list[int] = counts.tolist()
        used = sum(given)
        # When all jobs left of a phase run, the next phase is near: without this its GPUs would be gone by then.
        reserved = min(leased, self.apps.wanted_next(app)) - used if used and all(given) else 0
        return Holding(jobs, use, used, counts, max(reserved, 0))

    def _keeps_elsewhere(self, i: int, app: int, kind: int) -> bool:
        current = self.apps.current[i]
        return current not in (-1, kind) and (app, current) in self.leases

    def _counts(self, kind: int, jobs: Sequence[int], gpus: int) -> Int64s:
        if len(jobs) == 1:
            least, most = self.apps.gpu_range(jobs[0], kind)
            count = min(most, gpus) if gpus >= least else 0
            return np.array([self.apps.fastest_count(jobs[0], kind, count) if least < count < most else count])
        columns = self.apps.snapshot.columns
        running = np.where(columns.kind[jobs] == kind, columns.held[jobs], 0)
        counts = divided(gpus, [self.apps.gpu_range(i, kind) for i in jobs], running)
        return self._without_slowing(kind, jobs, counts)

    def _without_slowing(self, kind: int, jobs: Sequence[int], counts: Int64s) -> Int64s:
        """Return the counts without GPUs that slow a job down; these go to jobs of the app that they make faster."""
        quick, gpu_range = counts.copy(), self.apps.gpu_range
        for at, count in enumerate(counts.tolist()):
            if gpu_range(jobs[at], kind)[0] < count < gpu_range(jobs[at], kind)[1]:
                quick[at] = self.apps.fastest_count(jobs[at], kind, count)
        spare = int((counts - quick).sum())
        for at, i in enumerate(jobs):
            if not spare:
                break
            more = self.apps.fastest_count(i, kind, int(quick[at]) + spare) - int(quick[at])
            quick[at] += more
            spare -= more
        return quick

    def _agent(self, app: int, kind: int) -> AppAgent:
        """The agent of an app that could use GPUs of a kind; without a holding it keeps none."""
        holding = self._held(app, kind)
        if holding is None:
            return self.apps.agent(app, kind, self._open(app, kind), 0)
        return self.apps.agent(app, kind, holding.jobs, holding.kept)

    def _rho(self, app: int, kind: int) -> float:
        """Return ρ of an app that wins nothing now, by its last valuation, renewed if its jobs or own bid changed.

        A lease binds, so until it ends the app is taken to have what it keeps, and after that all it can use. So ρ
        measures the delay that the app could no longer avoid after this auction. It rises with every second an app
        waits, the faster the shorter the app is: short apps are invited before a lease of waiting has made them the
        worst.
        """
        valuation, bid = self.histories[app].valuation, self.apps.own_bid(app)
        bid_at = None if bid is None else bid.at
        if valuation is None or valuation.jobs != self.apps.jobs(app) or valuation.bid_at != bid_at:
            agent = self._agent(app, kind)
            valuation = self._record(app, agent, agent)
        wait, known, holding = self._until() - self.apps.snapshot.now, self.settled.apps.get(app), self.holdings[kind]
        kept = known.kept.get(kind, 0) if known is not None else holding[app].kept if app in holding else 0
        self.rhos[app] = self.apps.rho(app, valuation, wait, kept)
        return self.rhos[app]

    def _record(self, app: int, bidder: AppAgent, agent: AppAgent) -> AppValuation:
        """Record the valuation of the bidder, and the slowdown and estimate of the agent without distortion."""
        left, past, jobs = bidder.left, self.histories[app], self.apps.jobs(app)
        known = past.valuation
        same = known is not None and known.left is left and known.jobs == jobs and past.slowdown == agent.slowdown
        if known is not None and same and not known.spent:  # it has waited since
            return known
        left.flags.writeable = False
        bid_at = past.own_bid[0] if past.own_bid else None
        valuation = AppValuation(jobs, left, bidder.least, bidder.fastest, bid_at=bid_at)
        learned = {"slowdown": agent.slowdown, "valuation": valuation, "estimate": agent.estimate}
        self.histories[app] = msgspec.structs.replace(past, **learned)
        return valuation

    def _divide(self, app: int, kind: int, holding: Holding) -> None:
        """Divide the app's GPUs among its jobs, and record its leases."""
        award = self.awards.get((app, kind))
        won = award.gpus if award is not None else 0
        counts = self._counts(kind, holding.jobs, holding.kept + won) if won else holding.counts
        given, columns = counts > 0, self.apps.snapshot.columns
        jobs = np.array(holding.jobs)
        self.gpus[jobs], self.kinds[jobs[given]] = counts, kind
        if award is not None and won:
            running = np.where(columns.kind[jobs] == kind, columns.held[jobs], 0)
            self.one_node[jobs] = (counts > running) & (counts > 1) & (award.level is Level.MACHINE)
            if award.seats:
                self._pin(holding, counts, joined(Placement(holding.spare), Placement(award.seats)).seats)
        kept = trimmed(self.leases.pop((app, kind), ()), holding.kept + holding.reserved)
        lease = (*kept, (won, self._until())) if won else kept  # the same object where nothing changed
        if lease:
            self.leases[app, kind] = lease

    def _side(self, kind: int) -> SingleSide:
        """The apps of one job before the auction of a kind."""
        singles, columns, leases = self.apps.singles, self.apps.snapshot.columns, self.single_leases
        at, current = singles.at, columns.kind[singles.at]
        leased = np.zeros((len(singles), len(self.apps.snapshot.cluster.kinds)), dtype=np.int64)
        np.add.at(leased, (singles.records.rows.searchsorted(leases.rows), leases.kind), leases.gpus)
        elsewhere = (current >= 0) & (current != kind) & (leased[np.arange(len(at)), current] > 0)
        here = np.where((current == kind) & (columns.partner[at] < 0), columns.held[at], 0).astype(np.int64)
        return SingleSide.of(singles, kind, (self.kinds[at] < 0) & ~elsewhere, leased[:, kind], here)

    def _single_reports(self, side: SingleSide, offer: GpuOffer) -> Indices:
        """Return reports of the apps of one job that could use GPUs of an offer, after valuing those never valued."""
        first = side.first
        wanting = np.flatnonzero((first > 0) & (first <= offer.gpus))
        records = self.apps.singles.records
        self._value(side, wanting[records.valued[wanting] < 0])
        wait = self._until() - self.apps.snapshot.now
        self.single_rhos[wanting] = self.apps.singles.rho(wanting, wait, side.kept[wanting])
        side.bidder[wanting] = 0
        return wanting

    def _single_bids(self, side: SingleSide, bidders: Indices, offer: GpuOffer) -> SingleBids:
        """The bids of apps of one job, which are valued anew."""
        self._value(side, bidders)
        side.bidder[bidders] = 1
        return side.bids(bidders, offer, self.apps.snapshot.cluster.node_size[side.kind], self.apps.nothing)

    def _value(self, side: SingleSide, which: Indices) -> None:
        if len(which):
            side.singles.value(which, side.kind, self.apps.learned_by)

    def _divide_singles(self, kind: int, side: SingleSide) -> None:
        """Give the jobs of apps of one job what they keep and won, and record their leases."""
        apps, columns, leases = self.apps.singles, self.apps.snapshot.columns, self.single_leases
        awards = {place: award for place, award in side.awards.items() if award.gpus}
        holds = side.open & (side.leased > 0)
        counts, at = side.kept.copy(), apps.at
        if awards:
            won = np.array(list(awards), dtype=np.intp)
            gpus = np.array([award.gpus for award in awards.values()], dtype=np.int64)
            near = np.array([award.level is Level.MACHINE for award in awards.values()])
            counts[won] = side.used(won, side.kept[won] + gpus)
            running = np.where(columns.kind[at[won]] == kind, columns.held[at[won]], 0)
            self.one_node[at[won]] = (counts[won] > running) & (counts[won] > 1) & near
            holds[won] = True
        given = np.flatnonzero(holds)
        self.gpus[at[given]] = counts[given]
        given = given[counts[given] > 0]
        self.kinds[at[given]] = kind
        here = np.flatnonzero(leases.kind == kind)
        owner = apps.records.rows.searchsorted(leases.rows[here])
        cut = holds[owner] & (side.leased[owner] > side.kept[owner])
        if cut.any():
            self.single_leases = leases = leases.trimmed(here[cut], side.kept[owner[cut]])
        if awards:
            rows, until = apps.records.rows[won], np.full(len(won), self._until())
            self.single_leases = leases.joined(SingleLeases(rows, np.full(len(won), kind), gpus, until))

    def _pin(self, holding: Holding, counts: Int64s, seats: Seats) -> None:
        """Pin the further GPUs that jobs are given, beyond those they keep, to seats of the bundle.

        Where an app moves GPUs from one of its jobs to another, placement finds the seats.
        """
        snapshot = self.apps.snapshot
        more = counts - holding.counts
        if (more < 0).any() or int(more.sum()) > sum(count for _, count in seats):
            return
        wanted = {i: n for i, n in zip(holding.jobs, more.tolist(), strict=True) if n}
        kept = {i: n for i, n in zip(holding.jobs, holding.counts.tolist(), strict=True) if n}
        before = {i: snapshot.placement(i) for i in wanted}
        for i, new in seats_by_job(seats, wanted, before).items():
            own = before[i]
            if i not in kept:
                self.pinned[i] = new
            elif own is not None and own.gpus == kept[i]:
                self.pinned[i] = joined(own, new)
