"""What Themis tells each job: how its app fares, what it bid and won, what it paid, and until when it has its GPUs."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Floats, Int64s
from shoal.core.decision import NumberColumn, Verdicts
from shoal.core.reasons import LEASED, NO_ROOM, ReasonTemplate
from shoal.policy.base import explained
from shoal.policy.themis.protocol import Award
from shoal.policy.themis.round import Invitation, Round

AUCTION_WON = ReasonTemplate(
    12,
    "AUCTION_WON",
    "runs on {0:,.0f} GPUs: its app, at ρ {1:,.4g}, won {2:,.0f} at auction, paid {3:,.0f}% of them "
    "and kept {4:,.0f}, with {5:,.0f} left over by others; leased until t = {6:,.6g} s",
    (
        "GPUs granted",
        "the app's ρ",
        "GPUs the app won",
        "hidden payment in percent",
        "GPUs the app kept",
        "leftover GPUs the app got",
        "end of the lease in seconds",
    ),
)
AUCTION_HANDED = ReasonTemplate(
    13,
    "AUCTION_HANDED",
    "runs on {0:,.0f} GPUs: its app, at ρ {1:,.4g}, was handed {2:,.0f} of the {3:,.0f} auctioned "
    "that nobody kept; leased until t = {4:,.6g} s",
    ("GPUs granted", "the app's ρ", "leftover GPUs the app got", "GPUs auctioned", "end of the lease in seconds"),
)
AUCTION_LOST = ReasonTemplate(
    32,
    "AUCTION_LOST",
    "waits: its app, at ρ {0:,.4g}, bid for up to {1:,.0f} GPUs and has {2:,.0f} for other jobs, having paid {3:,.0f}%",
    ("the app's ρ", "GPUs auctioned", "GPUs the app got", "hidden payment in percent"),
)
AUCTION_UNINVITED = ReasonTemplate(
    33,
    "AUCTION_UNINVITED",
    "waits: its app, at ρ {3:,.4g}, is not among the {0:,.0f} that bid for {2:,.0f} GPUs, at ρ "
    "{1:,.4g} and above; it was handed {4:,.0f} for other jobs",
    ("apps that bid", "lowest ρ of those", "GPUs auctioned", "the app's ρ", "leftover GPUs the app got"),
)

REASONS = (AUCTION_WON, AUCTION_HANDED, AUCTION_LOST, AUCTION_UNINVITED)
_WON, _HANDED = AUCTION_WON, AUCTION_HANDED
_LOST, _UNINVITED = AUCTION_LOST, AUCTION_UNINVITED
_LEASED, _NO_ROOM = LEASED, NO_ROOM


def told(turn: Round) -> Verdicts:
    """The verdicts of a round."""
    snapshot = turn.apps.snapshot
    codes = np.where(turn.gpus > 0, _LEASED.code, _NO_ROOM.code)
    for kind in turn.cuts:
        jobs, given = _by_job(turn, kind, _given)
        _, denied = _by_job(turn, kind, lambda award, _: _LOST.code if award.bidder else _UNINVITED.code)
        codes[jobs] = np.where(turn.gpus[jobs] > 0, given, denied)
    numbers = _AuctionNumbers(turn)
    verdicts = explained(snapshot, turn.gpus, codes, numbers, turn.kinds)
    if not turn.near.any() and not turn.pinned:
        return verdicts
    hopeless = {i: verdicts.at(i) for i in np.flatnonzero((turn.gpus == 0) & ~snapshot.possible).tolist()}
    detailed = Verdicts(
        snapshot,
        gpus=turn.gpus,
        codes=codes,
        numbers=numbers,
        kinds=turn.kinds,
        consolidated=turn.near if turn.near.any() else None,
        placements=turn.pinned,
    )
    return detailed.overruled(hopeless)


def _given(award: Award, _: Invitation) -> float:
    template = _WON if award.gpus > award.extra else _HANDED if award.gpus else _LEASED
    return template.code


def _by_job(turn: Round, kind: int, number: Callable[[Award, Invitation], float]) -> tuple[Int64s, Floats]:
    """The jobs that an auction was about, those it seated and those still waiting, and a number of each one's app."""
    awards = {app: award for (app, k), award in turn.awards.items() if k == kind}
    members, cut = [turn.apps.members[app] for app in awards], turn.cuts[kind]
    jobs, numbers = np.concatenate(members), [float(number(award, cut)) for award in awards.values()]
    concerned = (turn.kinds[jobs] == kind) | (turn.gpus[jobs] == 0)
    return jobs[concerned], np.repeat(numbers, [len(own) for own in members])[concerned]


@dataclass(frozen=True, eq=False)
class _AuctionNumbers(Mapping[ReasonTemplate, tuple[NumberColumn, ...]]):
    """The numbers of the sentences, worked out when somebody asks."""

    turn: Round

    def __getitem__(self, template: ReasonTemplate) -> tuple[NumberColumn, ...]:
        turn, column = self.turn, self._column
        if template is _WON:
            kept, paid = column(lambda a, _: a.gpus - a.extra), column(lambda a, _: 100.0 * (1.0 - a.kept))
            won, extra = column(lambda a, _: a.won), column(lambda a, _: a.extra)
            return turn.gpus, self._rho(), won, paid, kept, extra, turn.ends()
        if template is _HANDED:
            return turn.gpus, self._rho(), column(lambda a, _: a.extra), column(lambda _, cut: cut.gpus), turn.ends()
        if template is _LOST:
            paid = column(lambda a, _: 100.0 * (1.0 - a.kept))
            return self._rho(), column(lambda _, cut: cut.gpus), column(lambda a, _: a.gpus), paid
        if template is _UNINVITED:
            bidders, least = column(lambda _, cut: cut.bidders), column(lambda _, cut: cut.rho)
            return bidders, least, column(lambda _, cut: cut.gpus), self._rho(), column(lambda a, _: a.gpus)
        if template is _LEASED:
            return (turn.ends(),)
        if template is _NO_ROOM:
            return turn.apps.snapshot.columns.min_gpus, self._free()
        raise KeyError(template)

    def __iter__(self) -> Iterator[ReasonTemplate]:
        return iter((_WON, _HANDED, _LOST, _UNINVITED, _LEASED, _NO_ROOM))

    def __len__(self) -> int:
        return 6

    def _column(self, number: Callable[[Award, Invitation], float]) -> Floats:
        """A number of the auction each job's app was in; 0 for one that was in none."""
        column = np.zeros(len(self.turn.gpus))
        for kind in self.turn.cuts:
            jobs, numbers = _by_job(self.turn, kind, number)
            column[jobs] = numbers
        return column

    def _rho(self) -> Floats:
        """How each job's app fares, if it was asked."""
        column = np.zeros(len(self.turn.gpus))
        for app, rho in self.turn.rhos.items():
            column[self.turn.apps.members[app]] = rho
        return column

    def _free(self) -> float:
        """GPUs that nobody has in the end."""
        return float(self.turn.apps.snapshot.cluster.total_gpus - self.turn.gpus.sum())
