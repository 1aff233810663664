"""The reasons of Themis and the verdicts of a round of auctions."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Floats, Int64s
from shoal.core.decision import NumberColumn, Verdicts
from shoal.core.reasons import LEASED, NO_ROOM, ReasonTemplate
from shoal.policy.base import explained
from shoal.policy.themis.holding import Invitation
from shoal.policy.themis.protocol import Award
from shoal.policy.themis.round import AuctionRound

AUCTION_WON = ReasonTemplate(
    12,
    "AUCTION_WON",
    "runs on {GPUs granted:,.0f} GPUs: its app, at ρ {the app's ρ:,.4g}, won {GPUs the app won:,.0f} at auction, "
    "paid {hidden payment in percent:,.0f}% of them and kept {GPUs the app kept:,.0f}, with "
    "{leftover GPUs the app got:,.0f} left over by others; leased until {end of the lease:time}",
)
AUCTION_HANDED = ReasonTemplate(
    13,
    "AUCTION_HANDED",
    "runs on {GPUs granted:,.0f} GPUs: its app, at ρ {the app's ρ:,.4g}, was handed "
    "{leftover GPUs the app got:,.0f} of the {GPUs auctioned:,.0f} auctioned that no app kept; leased until "
    "{end of the lease:time}",
)
AUCTION_LOST = ReasonTemplate(
    32,
    "AUCTION_LOST",
    "waits: its app, at ρ {the app's ρ:,.4g}, bid for up to {GPUs auctioned:,.0f} GPUs and has "
    "{GPUs the app got:,.0f} for other jobs, having paid {hidden payment in percent:,.0f}%",
)
AUCTION_UNINVITED = ReasonTemplate(
    33,
    "AUCTION_UNINVITED",
    "waits: its app, at ρ {the app's ρ:,.4g}, is not among the {apps that bid:,.0f} that bid for "
    "{GPUs auctioned:,.0f} GPUs, at ρ {lowest ρ of those:,.4g} and above; it was handed "
    "{leftover GPUs the app got:,.0f} for other jobs",
)
NOT_ADMITTED = ReasonTemplate(
    51,
    "NOT_ADMITTED",
    "waits for admission: its app requests {GPUs its app requests:,.0f} GPUs, the admitted apps request "
    "{GPUs admitted apps request:,.0f}, and together they may request {most GPUs requested at once:,.0f}; "
    "apps are admitted in order of arrival",
)

REASONS = (AUCTION_WON, AUCTION_HANDED, AUCTION_LOST, AUCTION_UNINVITED, NOT_ADMITTED)
_WON, _HANDED = AUCTION_WON, AUCTION_HANDED
_LOST, _UNINVITED = AUCTION_LOST, AUCTION_UNINVITED
_LEASED, _NO_ROOM, _OUTSIDE = LEASED, NO_ROOM, NOT_ADMITTED


def auction_verdicts(auctions: AuctionRound) -> Verdicts:
    """The verdicts of a round."""
    snapshot = auctions.apps.snapshot
    codes = np.where(auctions.gpus > 0, _LEASED.code, _NO_ROOM.code)
    for kind in auctions.invitations:
        jobs, given = _by_job(auctions, kind, _given)
        _, denied = _by_job(auctions, kind, lambda award, _: _LOST.code if award.bidder else _UNINVITED.code)
        codes[jobs] = np.where(auctions.gpus[jobs] > 0, given, denied)
    waiting = _waiting_apps(auctions)
    for jobs in waiting.values():
        codes[jobs] = _OUTSIDE.code
    numbers = _AuctionNumbers(auctions)
    verdicts = explained(snapshot, auctions.gpus, codes, numbers, auctions.kinds)
    if not auctions.one_node.any() and not auctions.pinned:
        return verdicts
    infeasible = {i: verdicts.at(i) for i in np.flatnonzero((auctions.gpus == 0) & ~snapshot.possible).tolist()}
    detailed = Verdicts(
        snapshot,
        gpus=auctions.gpus,
        codes=codes,
        numbers=numbers,
        kinds=auctions.kinds,
        consolidated=auctions.one_node if auctions.one_node.any() else None,
        placements=auctions.pinned,
    )
    return detailed.overruled(infeasible)


def _waiting_apps(auctions: AuctionRound) -> dict[int, Int64s]:
    """By app that waits for admission, the positions of its jobs."""
    apps = auctions.apps
    if len(apps.members) == len(apps.admission.every):
        return {}
    return {app: jobs for app, jobs in apps.admission.every.items() if app not in apps.members}


def _given(award: Award, _: Invitation) -> float:
    template = _WON if award.gpus > award.extra else _HANDED if award.gpus else _LEASED
    return template.code


def _by_job(auctions: AuctionRound, kind: int, number: Callable[[Award, Invitation], float]) -> tuple[Int64s, Floats]:
    """The jobs of an auction's apps that run on its kind or wait, and, for each, a number of its app."""
    apps, invitation, side = auctions.apps, auctions.invitations[kind], auctions.sides[kind]
    awards = {app: award for (app, k), award in auctions.awards.items() if k == kind and app in apps.members}
    members = [apps.members[app] for app in awards]
    numbers = [float(number(award, invitation)) for award in awards.values()]
    takes_part, alone = np.flatnonzero(side.bidder >= 0), np.zeros(len(side.bidder))
    for bidder in (False, True):
        alone[side.bidder == bidder] = float(number(Award(0, 0, bidder), invitation))
    for place, award in side.awards.items():
        alone[place] = float(number(award, invitation))
    jobs = np.concatenate([*members, side.singles.at[takes_part]])
    by_job = np.concatenate([np.repeat(numbers, [len(own) for own in members]), alone[takes_part]])
    concerned = (auctions.kinds[jobs] == kind) | (auctions.gpus[jobs] == 0)
    return jobs[concerned], by_job[concerned]


@dataclass(frozen=True, eq=False)
class _AuctionNumbers(Mapping[ReasonTemplate, tuple[NumberColumn, ...]]):
    """The numbers of the reasons, computed when read."""

    auctions: AuctionRound

    def __getitem__(self, template: ReasonTemplate) -> tuple[NumberColumn, ...]:
        auctions, column = self.auctions, self._column
        offered = column(lambda _, invitation: invitation.gpus)
        got, extra = column(lambda award, _: award.gpus), column(lambda award, _: award.extra)
        paid = column(lambda award, _: 100.0 * (1.0 - award.kept))
        if template is _WON:
            won = column(lambda award, _: award.won)
            return auctions.gpus, self._rho(), won, paid, got - extra, extra, auctions.ends()
        if template is _HANDED:
            return auctions.gpus, self._rho(), extra, offered, auctions.ends()
        if template is _LOST:
            return self._rho(), offered, got, paid
        if template is _UNINVITED:
            bidders, least = column(lambda _, asked: asked.bidders), column(lambda _, asked: asked.rho)
            return self._rho(), bidders, offered, least, got
        return (auctions.ends(),) if template is _LEASED else self._waiting(template)

    def _waiting(self, template: ReasonTemplate) -> tuple[NumberColumn, ...]:
        """Return the numbers of jobs that take no part in an auction and have no GPUs."""
        apps = self.auctions.apps
        if template is _NO_ROOM:
            return apps.snapshot.columns.min_gpus, self._free()
        if template is _OUTSIDE:
            return self._requested(), float(apps.admission.total), apps.admission.most
        raise KeyError(template)

    def __iter__(self) -> Iterator[ReasonTemplate]:
        return iter((_WON, _HANDED, _LOST, _UNINVITED, _LEASED, _NO_ROOM, _OUTSIDE))

    def __len__(self) -> int:
        return 7

    def _column(self, number: Callable[[Award, Invitation], float]) -> Floats:
        """By job a number of the auction that its app was in; 0 without one."""
        column = np.zeros(len(self.auctions.gpus))
        for kind in self.auctions.invitations:
            jobs, numbers = _by_job(self.auctions, kind, number)
            column[jobs] = numbers
        return column

    def _rho(self) -> Floats:
        """By job the ρ that its app reported; 0 if it did not."""
        column = np.zeros(len(self.auctions.gpus))
        for app, rho in self.auctions.rhos.items():
            column[self.auctions.apps.members[app]] = rho
        column[self.auctions.apps.alone] = self.auctions.single_rhos
        return column

    def _requested(self) -> Floats:
        """By job that waits for admission the GPUs that its app requests."""
        column = np.zeros(len(self.auctions.gpus))
        for app, jobs in _waiting_apps(self.auctions).items():
            column[jobs] = self.auctions.apps.admission.requested(app)
        return column

    def _free(self) -> float:
        return float(self.auctions.apps.snapshot.cluster.total_gpus - self.auctions.gpus.sum())
