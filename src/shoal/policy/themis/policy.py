"""Themis as a policy: GPUs without a lease are auctioned among the apps furthest from finish-time fairness.

ρ of an app is the time it takes here over the time it would take on its own 1/N of the cluster, N being the average
number of apps in its life. Whenever GPUs are free or their lease has ended, every app reports its ρ; the ``1 − f`` of
them with the worst are offered all these GPUs and bid the ρ they would have; the product of 1/ρ decides. Winners give
up a part of what they won as hidden payment, which goes to other apps at random. An app divides its GPUs among its jobs
so that few are moved and those of a phase end together. The GPUs of a completed job stay with its app until their lease
ends, if another of its jobs can use them, or its next phase could and no job of this one waits.

Choices where the paper is silent, each in its place: the ρ by which apps are invited (`AuctionRound`), the number of
apps expected in the rest of an app's life (`Apps.ideal`), the ρ of an app without GPUs (`AppAgent.rho`), whole GPUs of
a fraction (`solve.auction.rounding`), the recipient of GPUs that no app outside the auction can use (`Arbiter.settle`).
Leases end on a common clock, every ``lease`` seconds, and last from half of that to one and a half: if each ended at a
time of its own, GPUs would be offered a few at a time, too few for gangs (in a trial on the paper's 168 GPUs the worst
ρ was then 2.5 times as high in the median of three seeds). Kinds are auctioned one after the other, in the operator's
order.

An app may bid for itself: the seconds it would take, by number of GPUs, count as long as it has the jobs it bid with,
and its time on its own share follows from the same bid (`Apps.ideal`).

``bids=count`` bids for numbers of GPUs, as near together as the offer allows, and asks placement for one machine where
it bid for one; ``bids=machines`` names machines and is placed there. Experiments (figures 17 and 18) set ``noise``,
``liar`` and ``lie``: every app's estimates of its work and of the cost of distance are off by up to ± ``noise`` of
them, and one app overstates the cost of distance by ``lie``.

References: Themis (NSDI '20), with errors in its pseudocode corrected.
"""

from dataclasses import dataclass, replace
from math import inf, isfinite

import numpy as np

from shoal.core.bids import AppStanding
from shoal.core.decision import Decision
from shoal.core.snapshot import Snapshot
from shoal.policy.themis.agent import AppAgent
from shoal.policy.themis.app_status import app_status
from shoal.policy.themis.apps import Apps
from shoal.policy.themis.arbiter import Arbiter
from shoal.policy.themis.carry import ThemisCarry
from shoal.policy.themis.reasons import REASONS, auction_verdicts
from shoal.policy.themis.round import AuctionRound
from shoal.policy.themis.singles import single_positions


@dataclass(frozen=True, slots=True)
class Themis:
    """Round-by-round partial allocation auctions."""

    reasons = REASONS
    f: float = 0.8
    lease: float = 600.0
    rounding: str = "random"
    bids: str = "count"
    nothing: float = 2.0
    admit: float = inf
    noise: float = 0.0
    liar: str = ""
    lie: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.f <= 1.0:
            raise ValueError(f"f must be a fraction from 0 to 1, not {self.f}")
        if not (isfinite(self.lease) and self.lease >= 1):
            raise ValueError(f"lease must be a finite number of seconds, at least 1, not {self.lease}")
        if self.rounding not in ("random", "floor"):
            raise ValueError(f"rounding must be random or floor, not {self.rounding}")
        if self.bids not in ("count", "machines"):
            raise ValueError(f"bids must be count or machines, not {self.bids}")
        if not self.nothing > 1.0:
            raise ValueError(f"nothing must be a factor above 1, or inf, not {self.nothing}")
        if not self.admit > 0.0:
            raise ValueError(f"admit must be a number of GPUs requested per GPU above 0, or inf, not {self.admit}")
        if not 0.0 <= self.noise < 1.0:
            raise ValueError(f"noise must be a fraction from 0 up to 1, not {self.noise}")
        if not 0.0 <= self.lie < inf:
            raise ValueError(f"lie must be a finite fraction, at least 0, not {self.lie}")

    def decide(self, snapshot: Snapshot) -> Decision:
        """A verdict for every live job, reviewed when the first lease ends if some job could use more GPUs."""
        return decision_of(self.auctions(snapshot))

    def auctions(self, snapshot: Snapshot) -> AuctionRound:
        """Hold the auctions of a decision, one for each kind."""
        auctions = AuctionRound(self._apps(snapshot, columns=self._plain), self.lease)
        arbiter = Arbiter(self.f, self.rounding)
        for kind in range(len(snapshot.cluster.kinds)):
            auctions.auction(kind, arbiter, self._distorted, named=self.bids == "machines")
        return auctions

    def standing(self, snapshot: Snapshot, app: int) -> AppStanding:
        """The status of an app, by its number, before the next auction."""
        return app_status(replace(self._apps(snapshot, columns=False), limit=inf), app)

    def _apps(self, snapshot: Snapshot, *, columns: bool) -> Apps:
        """Return the apps of a snapshot; with ``columns`` apps of one job are in columns."""
        before = snapshot.carry if isinstance(snapshot.carry, ThemisCarry) else ThemisCarry(at=snapshot.now)
        alone = single_positions(snapshot, before) if columns else np.zeros(0, dtype=np.intp)
        rows = snapshot.columns.rows
        return Apps(snapshot, before.with_objects(rows, rows[alone]), self.nothing, self.admit, alone, columns)

    @property
    def _plain(self) -> bool:
        """Whether apps of one job can be in columns: no option distorts, delays or seats them one by one."""
        return self.bids == "count" and not self.noise and not self.lie and self.admit == inf

    def _distorted(self, agent: AppAgent, apps: Apps) -> AppAgent:
        """The agent with the experiment's random errors or lie."""
        if self.noise:
            rng = np.random.default_rng([apps.snapshot.seed, agent.app])
            work, slowdown = rng.uniform(-self.noise, self.noise, 2).tolist()
            agent = agent.with_errors(work, slowdown)
        return agent.with_errors(0.0, self.lie) if self.lie and apps.name(agent.app) == self.liar else agent


def decision_of(auctions: AuctionRound) -> Decision:
    """The decision that follows from a round of auctions."""
    return Decision(auction_verdicts(auctions), auctions.review_at(), auctions.next_carry())
