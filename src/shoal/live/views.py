"""Views of a live cluster: rows of jobs, nodes and tenants, with the last decision's sentences.

A tenant sees its own jobs; the names of other tenants' jobs are hidden in sentences. An admin (tenant None) sees all.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import inf
from time import localtime, strftime

import numpy as np

from shoal.core.arrays import Flags, Floats
from shoal.core.decision import Verdicts
from shoal.core.lengths import LengthView
from shoal.core.lifecycle import JobState
from shoal.core.reasons import NO_KIND, RETURNED, SET_ASIDE, TENANT_CAP, WIDER_THAN_CAP
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Topology
from shoal.core.units import JobId, JobNumber, Seconds, TenantId, span
from shoal.live.accounts import Account, Accounts
from shoal.live.expected_end import expected_end, expected_start, length_in_words, predicted
from shoal.live.foreign_names import without_foreign_names
from shoal.live.held_words import remedy_of, running_hold, why_held
from shoal.live.holdings import Holdings
from shoal.live.job_lists import WAITING, Listed
from shoal.live.kept_lengths import KeptLengths
from shoal.live.run_links import run_links
from shoal.live.seat_history import spans_of
from shoal.live.time_words import ClockWords
from shoal.live.verdict_words import verdict_sentence
from shoal.wire.messages import AcctRow, JobDetail, JobRow, Moment, NodeRow, StartForecast, TenantRow
from shoal.wire.watch_messages import SeatRow

_OWN_REMEDY = {
    TENANT_CAP.code: "it would start when a job of its tenant ends, or when an operator raises `shoal quota`",
    WIDER_THAN_CAP.code: "it would run on fewer GPUs (`shoal resize`), or when an operator raises `shoal quota`",
    RETURNED.code: "it would start when the other tenant no longer needs what is guaranteed to it",
    SET_ASIDE.code: "`shoal cancel` ends it; submit it again with other values",
}
"""By reason code, a hint on how to let the job run, where GPUs that come free are not enough."""

BID = "bid for a GPU over the price"
"""Name of the number in a reason that is a job's bid."""

_DECIDED = ("seated ", "resized ", "warned to save", "to be suspended", "to be resumed")
"""How the entries of a job's history begin that commands of decisions leave."""


@dataclass(slots=True)
class LastDecision:
    """A snapshot, its verdicts, and the policy's ``carry`` after it."""

    snapshot: Snapshot
    verdicts: Verdicts
    carry: object | None = None
    kept_lengths: KeptLengths = field(default_factory=KeptLengths)
    changed: Flags = field(init=False)
    """By position in the snapshot: whether the job's verdict has another code or number of GPUs than before."""

    _bids: Floats | None = None

    def __post_init__(self) -> None:
        self.changed = np.ones(len(self.verdicts.gpus), dtype=bool)

    def compare(self, before: "LastDecision") -> None:
        """Set ``changed`` by comparing with the decision before."""
        mine, theirs = self.snapshot.columns.rows, before.snapshot.columns.rows
        if not len(theirs) or not len(mine):
            return
        at = np.minimum(np.searchsorted(theirs, mine), len(theirs) - 1)
        same = theirs[at] == mine
        same &= self.verdicts.codes == before.verdicts.codes[at]
        same &= self.verdicts.gpus == before.verdicts.gpus[at]
        self.changed = ~same

    def sentence(self, job: JobNumber, words: ClockWords) -> str | None:
        """Return the reason of a job's verdict; None if the job was not in the snapshot."""
        at = self.snapshot.position_of(job)
        if at < 0:
            return None
        snapshot = self.snapshot
        return verdict_sentence(self.verdicts.reason(at), snapshot.cluster, snapshot.columns.speeds[at], words)

    @property
    def lengths(self) -> LengthView | None:
        """Predicted lengths that any thread may read; of this decision, or of one shortly before."""
        return self.kept_lengths.view

    def length_in_words(self, account: Account, now: Seconds) -> str:
        """Return a phrase on how long a job that declares no work is expected to run on; empty if that is not known."""
        at = self.snapshot.position_of(account.number)
        return "" if at < 0 else length_in_words(account, now, self.lengths, self.snapshot.columns.best_speed.item(at))

    def bid(self, job: JobNumber) -> float | None:
        """Return a job's bid for a GPU, divided by the price; None if the policy states none."""
        at = self.snapshot.position_of(job)
        if self._bids is None:
            self._bids = _bids(self.verdicts)
        return float(self._bids[at]) if at >= 0 and np.isfinite(self._bids[at]) else None

    def partner(self, job: JobNumber) -> JobNumber | None:
        """Return the job that shares its GPUs."""
        at = self.snapshot.position_of(job)
        if at < 0 or self.verdicts.partners is None or self.verdicts.partners[at] < 0:
            return None
        return int(self.snapshot.columns.rows[self.verdicts.partners[at]])

    def remedy(self, account: Account, placed: Sequence[Account], now: Seconds) -> str:
        """Return a hint on how to let a waiting job run; empty for a running one. ``placed`` are the jobs with GPUs."""
        if account.state is JobState.HELD:
            return remedy_of(account)
        at = self.snapshot.position_of(account.number)
        if at < 0 or self.verdicts.gpus[at] or not account.live:
            return ""
        cluster, speeds, wanted = self.snapshot.cluster, self.snapshot.columns.speeds[at], account.spec.gpus
        usable = [k for k in range(len(cluster.kinds)) if speeds[k] > 0]
        most = max((cluster.capacity[k] for k in usable), default=0)
        own = {**_OWN_REMEDY, NO_KIND.code: f"it would run if its `kinds` named one of {', '.join(cluster.kinds)}"}
        if self.verdicts.codes[at] in own:
            return own[self.verdicts.codes[at]]
        if not most:
            return "it would run when a node it can use comes up (`shoal nodes`)"
        if wanted > most:
            return f"it would run on {most} GPUs or fewer (`shoal resize`), or when more nodes come up"
        return self._waiting_for(usable, wanted, placed, now)

    def _waiting_for(self, usable: Sequence[int], wanted: int, placed: Sequence[Account], now: Seconds) -> str:
        """Return a sentence on the GPUs of the usable kinds that are free, and on when the next come free."""
        cluster = self.snapshot.cluster
        free = {k: cluster.capacity[k] for k in usable}
        holders = []
        for other in placed:
            assert other.placement is not None
            kind = cluster.kind_of(other.placement)
            if kind in free:
                holders.append(other)
                partner = self.partner(other.number)
                if partner is None or partner > other.number:  # of two that share GPUs, one counts
                    free[kind] -= other.placement.gpus
        most = max(free.values())
        if most < wanted:
            missing = f"{_gpus(wanted - most)} more {'comes' if wanted - most == 1 else 'come'} free"
            return f"it would start when {missing}: {self._next_end(holders, now)}"
        return f"{_gpus(most)} are free, but jobs before it are to get them: {self._next_end(holders, now)}"

    def _next_end(self, holders: Sequence[Account], now: Seconds) -> str:
        if not holders:
            return "no job runs there now"
        soonest = min((self._seconds_left(account, now) for account in holders), default=inf)
        when = f"the next is expected to end in {span(soonest)}" if soonest < inf else "when they end is not known"
        return f"{len(holders)} job{'s hold' if len(holders) > 1 else ' holds'} GPUs there, {when}"

    def _seconds_left(self, account: Account, now: Seconds) -> float:
        """Return the seconds until a job ends, by its declared work or else by earlier runs; infinity if unknown.

        It ends at its time limit at the latest.
        """
        at, most = self.snapshot.position_of(account.number), account.time_left(now)
        if at < 0:
            return most
        if account.spec.work is None:
            found = predicted(account, now, self.lengths)
            speed = account.rate or float(self.snapshot.columns.best_speed[at])
            return most if found is None or not speed else min(most, found.median / speed)
        # Relative to the decision, which may be some time ago.
        return min(most, max(0.0, float(self.snapshot.columns.remaining_seconds[at]) - (now - self.snapshot.now)))


def _bids(verdicts: Verdicts) -> Floats:
    """Return the bid by position in the snapshot, from the numbers of the reasons; NaN where there is none."""
    found = np.full(len(verdicts.gpus), np.nan)
    for template, numbers in verdicts.numbers.items():
        if BID in template.numbers:
            there = verdicts.codes == template.code
            bids = np.broadcast_to(np.asarray(numbers[template.numbers.index(BID)], dtype=float), found.shape)
            found[there] = bids[there]
    return found


@dataclass(frozen=True, slots=True)
class ClusterViews:
    """The accounts and the last decision as one tenant may see them; times are Unix times, ``epoch`` plus the ring's.

    Built per request. The caller holds the control plane's lock, except for ``jobs``, which takes copies of accounts,
    for ``nodes`` and ``used_gpus``, which take holdings, and for ``acct``, since the account of an ended job does not
    change.
    """

    accounts: Accounts
    last: LastDecision | None
    topology: Topology
    forecasts: Mapping[JobId, StartForecast]
    now: Seconds
    epoch: float
    tenant: TenantId | None
    drained: Mapping[int, str] = field(default_factory=dict)
    """By drained node, the reason."""
    forecast_age: Seconds = 0.0
    """Seconds since ``forecasts`` were made."""
    engine_note: Callable[[str], str] = lambda _: ""
    """Returns the engine's note on a node of a provider; empty if there is none."""
    _censored: dict[str, str] = field(default_factory=dict)

    def jobs(self, listed: Sequence[Listed]) -> list[JobRow]:
        """Return the rows of these jobs; waiting jobs have a position."""
        return [self._row(account, position if account.state in WAITING else None) for account, position in listed]

    def job(self, account: Account, verdicts: Sequence[tuple[Seconds, str]]) -> JobDetail:
        """Return everything about one job; ``verdicts`` are its recorded verdicts, with their times."""
        row, last = self._row(account), self.last
        numbered = self.accounts.decisions.number_at
        story = [Moment(at, what, numbered(at) if what.startswith(_DECIDED) else None) for at, what in account.history]
        story += [Moment(at, self._without_foreign_names(sentence), numbered(at)) for at, sentence in verdicts]
        return JobDetail(
            job=row,
            command=list(account.launch.command),
            workdir=account.launch.workdir,
            ranks=account.launch.ranks,
            grace=account.launch.grace,
            incarnation=account.incarnation,
            restarts=max(0, account.starts - 1),
            crashes=account.crashes.in_a_row,
            gpu_seconds=account.used(self.now),
            rate=account.rate,
            decision=row.reason,
            decided=self.epoch + (last.snapshot.now if last is not None else account.submitted),
            change=self._change(account),
            story=[Moment(self.epoch + m.at, m.what, m.decision) for m in sorted(story, key=lambda m: m.at)],
            stop=account.stop_cost(self.now),
            lost_gpu_seconds=account.lost_gpu_seconds,
            exit_status=account.exit_status,
            length="" if last is None else last.length_in_words(account, self.now),
            links=run_links(account.launch.env, account.links),
        )

    def _change(self, account: Account) -> str:
        """Return a hint on how to let a waiting job run: it names nodes whose GPUs cannot be used, and why."""
        if account.state is JobState.HELD:
            return remedy_of(account, self.tenant)
        remedy = self.last.remedy(account, self._placed(), self.now) if self.last is not None else ""
        if not remedy:
            return ""
        names = [node.name for node in self.topology.nodes]
        drained = [f"{names[node]} ({reason})" for node, reason in sorted(self.drained.items())]
        notes = ((node, self.engine_note(names[node])) for node in sorted(self.topology.down - self.topology.removed))
        away = [f"{names[node]} ({note})" for node, note in notes if note]
        for what, found in (("drained", drained), ("not up", away)):
            more = f" and {len(found) - 3} more" if len(found) > 3 else ""
            remedy += f"; {what}: {', '.join(found[:3])}{more}" if found else ""
        return self._without_foreign_names(remedy)

    def nodes(
        self, last_reports: Sequence[Seconds | None], holdings: Holdings, retired: Set[int] = frozenset()
    ) -> list[NodeRow]:
        """Return every node, with the time of its agent's last report and the jobs on it that the tenant may see.

        ``retired`` nodes are left out if they are down and no job is on them.
        """
        rows, by_node, suspended = [], holdings.by_node(), holdings.suspended_by_node()
        used, recent = self.used_gpus(holdings), holdings.recent_use(self.topology.nodes, self.now)
        for index, (node, at) in enumerate(zip(self.topology.nodes, last_reports, strict=True)):
            here = by_node.get(index, [])
            if index in retired and index in self.topology.down and not here:
                continue
            rows.append(
                NodeRow(
                    name=node.name,
                    kind=node.kind,
                    gpus=node.gpus,
                    rack=node.rack,
                    up=index not in self.topology.down,
                    used=used.get(index, 0),
                    jobs=[account.spec.id for account, _ in here if self._shown(account)],
                    heard=self._unix(at),
                    drained=self._without_foreign_names(self.drained.get(index, "")),
                    suspended=[account.spec.id for account in suspended.get(index, ()) if self._shown(account)],
                    held={account.spec.id: gpus for account, gpus in here if self._shown(account)},
                    recent_use=round(recent[index], 4),
                )
            )
        return rows

    def seat_spans(self) -> list[SeatRow]:
        """Return which job held which GPUs when; jobs of other tenants are unnamed, under one common tenant."""
        present = (span for account in self._placed() for span in spans_of(account, None))
        return [
            SeatRow(
                job=span.job if self.tenant in (None, span.tenant) else "",
                tenant=span.tenant if self.tenant in (None, span.tenant) else "others",
                run=span.run,
                node=self.topology.nodes[span.node].name,
                gpus=span.gpus,
                began=round(self.epoch + span.began, 1),
                ended=None if span.ended is None else round(self.epoch + span.ended, 1),
                decision=self.accounts.decisions.number_at(span.began) if self.tenant in (None, span.tenant) else None,
            )
            for span in (*self.accounts.past_seats, *present)
        ]

    def used_gpus(self, holdings: Holdings) -> dict[int, int]:
        """Return the GPUs in use by node index, for the nodes with jobs."""
        shared = self.last is not None and self.last.verdicts.partners is not None
        return holdings.used(self.topology.nodes, self.last.partner if shared and self.last is not None else None)

    def share(self) -> list[TenantRow]:
        """Return the GPUs held and GPU-seconds used by tenant; a tenant sees itself and all others as one."""
        sums: dict[str, list[float]] = {}

        def row_of(owner: TenantId) -> list[float]:
            return sums.setdefault(owner if self.tenant in (None, owner) else "others", [0, 0, 0.0])

        quotas = self.accounts.quotas
        for owner in quotas:
            if self.tenant in (None, owner):
                row_of(owner)
        for owner, gpu_seconds in self.accounts.ended_gpu_seconds.items():
            row_of(owner)[2] += gpu_seconds
        for account in self.accounts.live.values():
            row = row_of(account.spec.tenant)
            row[0] += 1
            row[1] += account.placement.gpus if account.placement else 0
            row[2] += account.used(self.now)
        held, ever = sum(row[1] for row in sums.values()), sum(row[2] for row in sums.values())
        return [
            TenantRow(
                tenant=name,
                live=int(row[0]),
                held=int(row[1]),
                gpu_seconds=row[2],
                part_now=row[1] / held if held else 0.0,
                part_ever=row[2] / ever if ever else 0.0,
                most=quotas[name].gpus if name in quotas else None,
                guaranteed=quotas[name].guaranteed if name in quotas else 0,
            )
            for name, row in sorted(sums.items())
        ]

    def _with_ended(self, before: Sequence[Account]) -> list[Account]:
        """Return all accounts in order of submission; one that was just moved to disk may be in both places."""
        known = self.accounts.accounts
        found = [*(account for account in before if account.number not in known), *known.values()]
        return sorted(found, key=lambda account: account.number)

    def acct(self, before: Sequence[Account] = ()) -> list[AcctRow]:
        """Return the ended jobs, in order of submission, and the resources they used; ``before`` as for ``jobs``."""
        return [
            AcctRow(
                id=account.spec.id,
                name=account.launch.name,
                tenant=account.spec.tenant,
                state=account.state.name.lower(),
                gpus=account.spec.gpus,
                submitted=self.epoch + account.submitted,
                started=self._unix(account.started),
                ended=self.epoch + account.ended,
                waited=(account.ended if account.started is None else account.started) - account.submitted,
                gpu_seconds=account.gpu_seconds,
                restarts=max(0, account.starts - 1),
                cause=account.cause,
            )
            for account in self._with_ended(before)
            if account.ended is not None and self._shown(account)
        ]

    def _shown(self, account: Account) -> bool:
        return self.tenant in (None, account.spec.tenant)

    def _unix(self, at: Seconds | None) -> float | None:
        return None if at is None else self.epoch + at

    def _row(self, account: Account, position: int | None = None) -> JobRow:
        spec, seats, nodes = account.spec, account.placement, self.topology.nodes
        bound = seats or account.bound
        return JobRow(
            id=spec.id,
            name=account.launch.name,
            tenant=spec.tenant,
            state=account.state.name.lower(),
            gpus_held=seats.gpus if seats else 0,
            gpus_wanted=spec.gpus,
            submitted=self.epoch + account.submitted,
            started=self._unix(account.started),
            ended=self._unix(account.ended),
            done=account.progress(self.now),
            work=spec.work,
            kind=nodes[bound.nodes[0]].kind if bound else None,
            nodes=[nodes[node].name for node in bound.nodes] if bound else [],
            reason=self._reason(account),
            position=position,
            start=expected_start(account, self.now, self.forecasts.get(spec.id), self.forecast_age),
            end=expected_end(account, self.now, None if self.last is None else self.last.lengths),
            array=spec.conditions.array if spec.conditions is not None else None,
            priority=spec.priority,
            time=spec.time,
            bid=None if self.last is None or not account.live else self.last.bid(account.number),
        )

    def _reason(self, account: Account) -> str:
        words = ClockWords(self.epoch, self.now)
        if account.state is JobState.FAILED:
            return "; ".join(filter(None, (account.cause, account.held_after)))
        if not account.live:
            return account.cause or account.state.name.lower()
        if account.state is JobState.CANCELLING:
            until = strftime("%H:%M:%S", localtime(self._unix(account.ends_by)))
            return f"{account.cause}, ends by {until}"
        if account.state is JobState.HELD:
            return self._without_foreign_names(why_held(account, self.accounts, words))
        held = running_hold(account, words)
        sentence = self.last.sentence(account.number, words) if self.last is not None else None
        if account.state is JobState.SUSPENDED and account.bound is not None:
            where = ", ".join(self.topology.nodes[node].name for node in account.bound.nodes)
            since = words.at(account.suspended_at)
            waits = "" if held or sentence is None or not sentence.startswith("waits") else f": {sentence}"
            return self._without_foreign_names(
                f"suspended on {where} since {since}, to be resumed there; nothing of it is lost{waits}{held}"
            )
        sentence = "waits: it has just been submitted" if sentence is None else sentence
        return self._without_foreign_names(sentence + held)

    def _without_foreign_names(self, sentence: str) -> str:
        """Return the sentence without the names of other tenants' jobs."""
        if self.tenant is None:
            return sentence
        if sentence not in self._censored:  # many jobs wait for the same reason
            self._censored[sentence] = self._censor(sentence)
        return self._censored[sentence]

    def _censor(self, sentence: str) -> str:
        def owner(word: str) -> TenantId | None:
            number = self.accounts.numbers.get(word)
            account = None if number is None else self.accounts.accounts.get(number)  # it may have been dropped since
            return None if account is None else account.spec.tenant

        return without_foreign_names(sentence, self.tenant, owner)

    def _placed(self) -> list[Account]:
        return list(self.accounts.placed.values())


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' * (count != 1)}"
