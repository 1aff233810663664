"""What people are told of a cluster: its jobs, nodes and tenants as rows, for whoever asks.

A picture is made for one question and read at once, with nothing changing meanwhile: that is for the plane to see to.
A tenant sees its own jobs; where another's name stands in the reason of one of them, it is veiled. None is an admin.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import msgspec

from shoal.core.lifecycle import JobState
from shoal.core.retry import MOST_CRASHES
from shoal.core.topology import Topology
from shoal.core.units import JobId, Seconds, TenantId
from shoal.live.accounts import Account, Accounts
from shoal.live.last_decision import LastDecision
from shoal.wire.messages import AcctRow, JobDetail, JobRow, Moment, NodeRow, StartForecast, TenantRow


@dataclass(frozen=True, slots=True)
class ClusterViews:
    """The ledger and the latest decision, as one tenant may see them; times are Unix times, from ``epoch`` on."""

    ledger: Accounts
    board: LastDecision | None
    topology: Topology
    forecasts: Mapping[JobId, StartForecast]
    now: Seconds
    epoch: float
    tenant: TenantId | None

    def jobs(self, *, ended: bool) -> list[JobRow]:
        """The live jobs in order of submission; with ``ended``, all there ever were."""
        accounts = self.ledger.accounts if ended else list(self.ledger.live.values())
        rows = [self._row(account) for account in accounts if self._shown(account)]
        waiting = [row for row in rows if row.state in ("pending", "held")]
        starts = [row.start.median if row.start else inf for row in waiting]
        order = sorted(range(len(waiting)), key=lambda i: (starts[i], i))
        position = {waiting[i].id: place + 1 for place, i in enumerate(order)}
        return [_at(row, position.get(row.id)) for row in rows]

    def job(self, account: Account, told: Sequence[tuple[Seconds, str]]) -> JobDetail:
        """Everything about one job; ``told`` are the verdicts on it so far."""
        row, board = self._row(account), self.board
        story = sorted([*account.story, *((at, self._veiled(what)) for at, what in told)], key=lambda entry: entry[0])
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
            decided=self.epoch + (board.snapshot.now if board is not None else account.submitted),
            change=board.change(account, self._seated()) if board is not None else "",
            story=[Moment(self.epoch + at, what) for at, what in story],
        )

    def nodes(self, heard: Sequence[Seconds | None]) -> list[NodeRow]:
        """Every node: what it has, when it was last ``heard``, what runs there that one may see."""
        rows, seated = [], self._seated()
        for index, (node, at) in enumerate(zip(self.topology.nodes, heard, strict=True)):
            here = [a for a in seated if a.placement is not None and index in a.placement.nodes]
            rows.append(
                NodeRow(
                    name=node.name,
                    kind=node.kind,
                    gpus=node.gpus,
                    rack=node.rack,
                    up=index not in self.topology.down,
                    used=self._used(index, here),
                    jobs=[account.spec.id for account in here if self._shown(account)],
                    heard=None if at is None else self.epoch + at,
                )
            )
        return rows

    def share(self) -> list[TenantRow]:
        """What each tenant holds and has had; a tenant sees itself and all others as one."""
        sums: dict[str, list[float]] = {}

        def row_of(owner: TenantId) -> list[float]:
            return sums.setdefault(owner if self.tenant in (None, owner) else "others", [0, 0, 0.0])

        for owner, service in self.ledger.past.items():
            row_of(owner)[2] += service
        for account in self.ledger.live.values():
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
            )
            for name, row in sorted(sums.items())
        ]

    def acct(self) -> list[AcctRow]:
        """Jobs that ended, in order of submission: what they took."""
        epoch = self.epoch
        return [
            AcctRow(
                id=account.spec.id,
                name=account.launch.name,
                tenant=account.spec.tenant,
                state=account.state.name.lower(),
                gpus=account.spec.gpus,
                submitted=epoch + account.submitted,
                started=None if account.started is None else epoch + account.started,
                ended=epoch + account.ended,
                waited=(account.ended if account.started is None else account.started) - account.submitted,
                gpu_seconds=account.gpu_seconds,
                restarts=max(0, account.starts - 1),
                cause=account.cause,
            )
            for account in self.ledger.accounts
            if account.ended is not None and self._shown(account)
        ]

    def _shown(self, account: Account) -> bool:
        return self.tenant in (None, account.spec.tenant)

    def _row(self, account: Account) -> JobRow:
        spec, seats, nodes, epoch = account.spec, account.placement, self.topology.nodes, self.epoch
        return JobRow(
            id=spec.id,
            name=account.launch.name,
            tenant=spec.tenant,
            state=account.state.name.lower(),
            gpus_held=seats.gpus if seats else 0,
            gpus_wanted=spec.gpus,
            submitted=epoch + account.submitted,
            started=None if account.started is None else epoch + account.started,
            ended=None if account.ended is None else epoch + account.ended,
            done=account.progress(self.now),
            work=spec.work,
            kind=nodes[seats.nodes[0]].kind if seats else None,
            nodes=[nodes[node].name for node in seats.nodes] if seats else [],
            reason=self._reason(account),
            start=self.forecasts.get(spec.id) if account.state in (JobState.PENDING, JobState.HELD) else None,
        )

    def _reason(self, account: Account) -> str:
        if not account.live:
            return account.cause or account.state.name.lower()
        if account.state is JobState.HELD:
            wait = max(0.0, account.held_until - self.now)
            times = f"{account.crashes.in_a_row} of {MOST_CRASHES} times in a row"
            return f"waits: crashed {times} ({account.cause}); tried again in {wait:,.0f} s"
        sentence = self.board.sentence(account.number) if self.board is not None else None
        return "waits: it has just been submitted" if sentence is None else self._veiled(sentence)

    def _veiled(self, sentence: str) -> str:
        """The sentence without the names of other tenants' jobs."""
        accounts, numbers = self.ledger.accounts, self.ledger.numbers

        def hidden(word: str) -> bool:
            number = numbers.get(word)
            return number is not None and not self._shown(accounts[number])

        return sentence if self.tenant is None else LastDecision.veil(sentence, hidden)

    def _seated(self) -> list[Account]:
        return [account for account in self.ledger.live.values() if account.placement is not None]

    def _used(self, index: int, here: Sequence[Account]) -> int:
        """GPUs in use on a node; two jobs that share seats use them once."""
        counts: dict[frozenset[int], int] = {}
        for account in here:
            assert account.placement is not None
            partner = self.board.partner(account.number) if self.board is not None else None
            pair = frozenset({account.number} if partner is None else {account.number, partner})
            counts[pair] = dict(account.placement.seats)[index]
        return min(sum(counts.values()), self.topology.nodes[index].gpus)


def _at(row: JobRow, position: int | None) -> JobRow:
    if position is None:
        return row
    return msgspec.structs.replace(row, position=position)
