"""Which jobs hold GPUs where: read under the control plane's lock in a millisecond, grouped by node without it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shoal.core.lifecycle import JobState
from shoal.core.topology import Node, Placement
from shoal.core.units import JobNumber, Seconds
from shoal.live.accounts import Account, Accounts
from shoal.live.seat_history import RECENT_SECONDS, SeatSpan, recent_spans


@dataclass(frozen=True, slots=True)
class Holdings:
    """The jobs with GPUs, and the suspended ones with the seats on which they can be resumed."""

    placed: list[tuple[Account, Placement]]
    suspended: list[tuple[Account, Placement]]
    past: list[SeatSpan]
    """The seats that jobs have held, in the order of the times they left them."""

    @classmethod
    def of(cls, accounts: Accounts) -> "Holdings":
        """Return the GPUs that jobs hold now, and held before. The caller holds the control plane's lock."""
        live = accounts.live.values()
        suspended = [(a, a.bound) for a in live if a.state is JobState.SUSPENDED and a.bound is not None]
        placed = [(a, a.placement) for a in accounts.placed.values() if a.placement is not None]
        return cls(placed, suspended, accounts.past_seats.copy())

    def by_node(self) -> dict[int, list[tuple[Account, int]]]:
        """Return by index of a node the jobs that hold GPUs there, and how many."""
        found: dict[int, list[tuple[Account, int]]] = {}
        for account, placement in self.placed:
            for node, count in placement.seats:
                found.setdefault(node, []).append((account, count))
        return found

    def suspended_by_node(self) -> dict[int, list[Account]]:
        """Return by index of a node the jobs that are suspended there."""
        found: dict[int, list[Account]] = {}
        for account, placement in self.suspended:
            for node in placement.nodes:
                found.setdefault(node, []).append(account)
        return found

    def used(self, nodes: Sequence[Node], partner: Callable[[JobNumber], JobNumber | None] | None) -> dict[int, int]:
        """Return by index of a node the GPUs in use; two jobs that share GPUs, which ``partner`` finds, count once."""
        used: dict[int, int] = {}
        counted: set[tuple[int, JobNumber]] = set()
        for account, placement in self.placed:
            other = partner(account.number) if partner is not None else None
            for node, count in placement.seats:
                if other is not None:
                    if (node, other) in counted:
                        continue
                    counted.add((node, account.number))
                used[node] = used.get(node, 0) + count
        return {node: min(count, nodes[node].gpus) for node, count in used.items()}

    def recent_use(self, nodes: Sequence[Node], now: Seconds) -> list[float]:
        """Return by index of a node the fraction of its GPUs' time that jobs held, in the hour before ``now``.

        If holdings of that hour were dropped, the fraction is that of the part still known.
        """
        since, past = recent_spans(self.past, now - RECENT_SECONDS)
        held, whole = [0.0] * len(nodes), max(now - since, 1.0)
        for span in past:
            held[span.node] += span.gpus * ((span.ended or now) - max(span.began, since))
        for account, placement in self.placed:
            for node, count in placement.seats:
                held[node] += count * max(0.0, now - max(account.placed_at, since))
        return [min(1.0, seconds / (node.gpus * whole)) for node, seconds in zip(nodes, held, strict=True)]
