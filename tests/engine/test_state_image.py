"""Images of a state: everything comes back, and renumbered jobs keep their order, partners and bids."""

from dataclasses import replace

from tests.refusals import refusal

from shoal.core.bids import StandingBid
from shoal.core.columns import IntRow
from shoal.core.commands import Start, Suspend
from shoal.core.errors import JournalError
from shoal.core.events import (
    JobCrashed,
    JobProfiled,
    JobSetAside,
    JobStarted,
    JobSubmitted,
    JobSuspended,
    NodeLost,
    QuotaSet,
    SuspensionReported,
)
from shoal.core.goodput import GoodputReport, StepFit
from shoal.core.job import BatchSetting, JobSpec
from shoal.core.quota import Quota
from shoal.core.topology import Placement, parse_cluster
from shoal.engine.state import State
from shoal.engine.state_image import (
    JobImage,
    StateImage,
    decode_image,
    encode_image,
    image_of,
    renumbered,
    restore,
)
from shoal.perf.catalog import catalog
from shoal.perf.colocation import EstimatedModel
from shoal.perf.model import ProfiledModel
from shoal.testing.builders import job


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


CLUSTER = parse_cluster("t4:4x4")
FIRST, SECOND, THIRD = (Placement(((node, 4),)) for node in range(3))
REPORT = GoodputReport(
    (("t4", StepFit((0.1, 0.01), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0), 1.0, 128, 4, 1)),), 9.0, 128, 4, BatchSetting(128)
)


def empty() -> State:
    return State(CLUSTER, ProfiledModel(CLUSTER, catalog()))


def busy() -> State:
    """Two jobs that share GPUs, a suspended one, one that crashed; a quota, a report and a lost node."""
    state = empty()
    rows = [job(name, 0, 4, tenant="ann", model="cifar10", batch_size=128) for name in "abcd"]
    state.apply_events(0.0, [JobSubmitted(0.0, row.spec()) for row in rows])
    state.apply_events(0.0, [SuspensionReported(0.0, 1, "signals", 1000, 4), QuotaSet(0.0, "ann", Quota(16, 4))])
    state.apply_commands([Start(0, 1, FIRST), Start(1, 1, FIRST, None, 0), Start(2, 1, SECOND), Start(3, 1, THIRD)])
    state.apply_events(5.0, [JobStarted(5.0, number, 1, 1.0, 0.0) for number in range(4)])
    state.apply_events(9.0, [JobProfiled(9.0, 0, 1, 1.0, 4.0, REPORT), JobCrashed(9.0, 3, 1, 0.0, True, "it failed")])
    state.apply_commands([Suspend(2, 1)])
    state.apply_events(12.0, [JobSuspended(12.0, 2, 1, 5.0, 300), NodeLost(12.0, 3)])
    return state


def test_an_image_restores_all_that_a_state_holds() -> None:
    state = busy()
    image = decode_image(encode_image(image_of(state)))
    assert image.quotas == (("ann", Quota(16, 4)),)
    assert image.models == (("cifar10", replace(REPORT, remembered=True)),)
    assert image.down == (3,)
    assert [job.crashes is not None for job in image.jobs] == [False, False, False, True]
    assert [job.suspended_bytes for job in image.jobs] == [0, 0, 300, 0]
    again = empty()
    restore(again, image)
    assert image_of(again) == image
    assert again.free_gpus == state.free_gpus, "GPUs that two jobs share are taken once"
    assert again.suspensions == state.suspensions
    assert again.topology.down == {3}


def test_an_image_of_another_version_or_cluster_is_refused() -> None:
    with refusal("the base of this segment cannot be read: it has version none", JournalError):
        decode_image(b"")
    other, two = parse_cluster("v100:4x4"), parse_cluster("v100:1x4,k80:1x4")
    with refusal("a base of a cluster of t4 cannot begin a segment on v100", JournalError):
        restore(State(other, ProfiledModel(other, catalog())), image_of(busy()))
    with refusal("a base of a cluster of v100, k80 cannot begin a segment on v100", JournalError):
        restore(State(other, ProfiledModel(other, catalog())), image_of(State(two, ProfiledModel(two, catalog()))))


def test_a_pair_that_was_found_not_to_fit_is_known_after_a_restore() -> None:
    state = State(CLUSTER, EstimatedModel(CLUSTER, catalog()))
    a, b = (job(name, 0, 1, model=name, batch_size=batch).spec() for name, batch in (("LM", 5), ("A3C", 4)))
    assert isinstance(state.perf, EstimatedModel)
    state.perf = state.perf.parted(a, 5, b, 4)
    again = State(CLUSTER, EstimatedModel(CLUSTER, catalog()))
    restore(again, decode_image(encode_image(image_of(state))))
    assert isinstance(again.perf, EstimatedModel)
    assert again.perf.unfit == state.perf.unfit == {(("LM", 5), ("A3C", 4)), (("A3C", 4), ("LM", 5))}
