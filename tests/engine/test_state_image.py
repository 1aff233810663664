"""Images of a state: renumbered jobs keep their order, partners and bids."""

from dataclasses import replace

from shoal.core.bids import StandingBid
from shoal.core.columns import IntRow
from shoal.core.events import JobSetAside
from shoal.core.job import JobSpec
from shoal.engine.state_image import JobImage, StateImage, renumbered


def image(numbers: tuple[int, ...], partners: tuple[int, ...], bid: tuple[int, ...], aside: int) -> StateImage:
    def ints(partner: int) -> tuple[int, ...]:
        return tuple(partner if row == IntRow.PARTNER else 5 for row in range(IntRow.COUNT))

    jobs = tuple(
        JobImage(number, JobSpec(name, 0.0, 1, None, 1, 1), 2.0, (1.0, 2.0), ints(partner))
        for number, partner, name in zip(numbers, partners, "abc", strict=True)
    )
    return StateImage(
        *(9.0, 4, max(numbers) + 1, ("gpu",), (), jobs, (("ann", 3.0),)),
        bids=(("app", StandingBid(1.0, bid, ((1, 9.0),))),),
        set_aside=(JobSetAside(1.0, aside, "why", 99.0),),
    )


def test_renumbered_jobs_count_from_zero_wherever_they_are_named() -> None:
    given = image((5, 7, 9), (7, 5, 3), (5, 6, 9), 7)
    expected = replace(image((0, 1, 2), (1, 0, -1), (0, 2), 1), submitted=3)
    assert renumbered(given) == expected
