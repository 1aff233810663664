"""The auction as apps see it: their standing, and which bids are taken."""

from math import inf

import pytest
from tests.refusals import refusal

from shoal.core.bids import AppStanding, JobLeft, OnOffer
from shoal.core.decision import Decision
from shoal.core.errors import InputError
from shoal.core.interfaces import Policy
from shoal.core.snapshot import Snapshot
from shoal.live.app_bidding import AppBidding, UnknownApp
from shoal.policy.classic.fifo import Fifo
from shoal.testing.builders import job, snapshot
from shoal.wire.messages import AppBidMessage, AppOffer, KindOffer, WorkLeft


class Auction:
    """A policy whose auction knows one standing for all apps."""

    def __init__(self, rho: float = 2.0) -> None:
        self.rho = rho
        self.asked: list[int] = []

    def decide(self, snapshot: Snapshot) -> Decision:
        raise NotImplementedError

    def standing(self, snapshot: Snapshot, app: int) -> AppStanding:
        self.asked.append(app)
        return AppStanding(
            rho=self.rho,
            kind="gpu",
            most=3,
            jobs=(JobLeft(2, 0.5, 1, (10.0, 5.0)),),
            offers=(OnOffer("gpu", 2, ((2, 2),), 50.0), OnOffer("big", 1, ((1, 1),), None)),
            bid_in_force=True,
        )


MOMENT = snapshot(
    [
        job("a1", app="a", tenant="ann"),
        job("x"),
        job("a2", app="a", tenant="ann"),
        job("s1", app="shared", tenant="ann"),
        job("s2", app="shared", tenant="bob"),
    ],
    "gpu:2x2,big:1x1",
)


def bidding(policy: Policy | None = None) -> AppBidding:
    return AppBidding(policy or Auction(), MOMENT)


def bid(*jobs: str, gpus: int = 2) -> AppBidMessage:
    return AppBidMessage(list(jobs), [(1, 20.0), (gpus, 12.0)])


def test_an_offer_says_how_the_app_stands_in_unix_times() -> None:
    policy = Auction()
    assert bidding(policy).offer("a", "ann", 1000.0) == AppOffer(
        app="a",
        auctioned=True,
        rho=2.0,
        kind="gpu",
        most=3,
        said=True,
        jobs=[WorkLeft("a2", 0.5, 1, [10.0, 5.0])],
        kinds=[KindOffer("gpu", 2, [(2, 2)], 1050.0), KindOffer("big", 1, [(1, 1)], None)],
    )
    assert policy.asked == [int(MOMENT.columns.app[0])]


def test_an_infinite_rho_is_left_out() -> None:
    assert bidding(Auction(inf)).offer("a", None, 0.0).rho is None


def test_where_nothing_is_auctioned_an_offer_says_so_and_a_bid_is_refused() -> None:
    assert bidding(Fifo()).offer("a", "ann", 0.0) == AppOffer(app="a", auctioned=False)
    with refusal("app: 'a': the policy in force holds no auctions; there is nothing to bid for"):
        bidding(Fifo()).check_bid("a", bid("a1", "a2"), "ann")


@pytest.mark.parametrize(("app", "tenant"), [("b", None), ("a", "bob")])
def test_an_app_that_is_not_there_or_anothers_is_unknown(app: str, tenant: str | None) -> None:
    with pytest.raises(UnknownApp):
        bidding().offer(app, tenant, 0.0)
    with pytest.raises(UnknownApp):
        bidding().check_bid(app, bid("a1", "a2"), tenant)


@pytest.mark.parametrize("tenant", [None, "ann"])
def test_a_bid_is_taken_for_the_jobs_the_app_has(tenant: str | None) -> None:
    assert bidding().check_bid("a", bid("a2", "a1"), tenant) == ((0, 2), ((1, 20.0), (2, 12.0)))


def test_a_bid_for_other_jobs_or_an_app_of_several_tenants_is_refused() -> None:
    with refusal("jobs: 'a1': its jobs are others now (a1, a2): ask for its offer again"):
        bidding().check_bid("a", bid("a1"), "ann")
    many = snapshot([job(f"a{n}", app="a", tenant="ann") for n in range(11)], "gpu:2x2")
    first_ten = ", ".join(f"a{n}" for n in range(10))
    with refusal(f"jobs: 'a0': its jobs are others now ({first_ten}): ask for its offer again"):
        AppBidding(Auction(), many).check_bid("a", bid("a0"), "ann")
    for tenant, jobs in (("ann", ("s1",)), (None, ("s1", "s2"))):
        with refusal("app: 'shared': other tenants have jobs of that name too; name yours otherwise"):
            bidding().check_bid("shared", bid(*jobs), tenant)


def test_a_bid_for_more_gpus_than_are_installed_is_refused() -> None:
    assert bidding().check_bid("a", bid("a1", "a2", gpus=4), "ann")[1][-1] == (4, 12.0)
    with pytest.raises(InputError):
        bidding().check_bid("a", bid("a1", "a2", gpus=5), "ann")
