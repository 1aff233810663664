"""A state from its image is the state: each column and value that a policy can see, now and after further events."""

from dataclasses import fields

import numpy as np
import pytest

from shoal.core.bids import StandingBid
from shoal.core.commands import Command, Resize, Resume, Start, Stop, Suspend
from shoal.core.events import (
    AppBid,
    CancelRequested,
    Event,
    HoldLifted,
    JobCancelled,
    JobCompleted,
    JobCrashed,
    JobHeld,
    JobMeasured,
    JobReleased,
    JobResumed,
    JobSaved,
    JobSetAside,
    JobStarted,
    JobStopped,
    JobSubmitted,
    JobSuspended,
    NodeDrained,
    NodeJoined,
    NodeLost,
    NodeRemoved,
    NodeResumed,
    NodeReturned,
    PolicyOverran,
    PriorityChanged,
    QuotaSet,
    SuspensionReported,
)
from shoal.core.quota import Quota
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Placement
from shoal.engine.state import State
from shoal.engine.state_image import decode_image, encode_image, image_of, restore
from shoal.perf.catalog import catalog
from shoal.perf.model import OnlineModel
from shoal.testing.builders import job, topology
from shoal.testing.conformance import arrays, same

CLUSTER = "v100:3x4,k80:2x4"


def seats(*pairs: tuple[int, int]) -> Placement:
    return Placement(pairs)


def fresh() -> State:
    world = topology(CLUSTER)
    return State(world, OnlineModel(world))


BEFORE: list[Event | Command] = [
    *(
        JobSubmitted(float(n), row.spec())
        for n, row in enumerate(
            [
                job("runs", 0.0, 2, tenant="ann", preemptible="auto", min_gpus=1, max_gpus=4),
                job("guest", 1.0, 2, tenant="bob"),
                job("crashed", 2.0, 1, tenant="ann", app="sweep"),
                job("suspended", 3.0, 2, tenant="bob", preemptible="auto"),
                job("held", 4.0, 1, tenant="cy", priority=3),
                job("aside", 5.0, 1, tenant="cy", app="sweep"),
                job("done", 6.0, 4, tenant="dee"),
                job("waits", 7.0, 3, tenant="ann"),
            ]
        )
    ),
    NodeJoined(8.0, 5, "new", "v100", 8, "r9"),
    NodeReturned(8.0, 5),
    QuotaSet(9.0, "ann", Quota(queued=5, gpus=6)),
    QuotaSet(9.0, "bob", Quota(guaranteed=2)),
    SuspensionReported(9.0, 1, "cuda", 1000, 4, ""),
    SuspensionReported(9.0, 2, "cuda", 2000, None, ""),
    Start(0, 1, seats((0, 2))),
    Start(1, 1, seats((0, 2)), partner=0),
    Start(2, 1, seats((2, 1))),
    Start(3, 1, seats((1, 2))),
    Start(6, 1, seats((3, 4))),
    *(JobStarted(12.0, n, 1, 1.0 + n, 0.0) for n in (0, 1, 2, 3, 6)),
    JobMeasured(40.0, 0, 1, 2.5, 30.0),
    JobSaved(41.0, 0, 1, 25.0, 3.0),
    JobCompleted(45.0, 6, 1, 99.0),
    JobCrashed(46.0, 2, 1, 5.0, True, "rank 0 died", 60.0, 34.0, 2, False, 1),
    JobHeld(47.0, 4, "root"),
    PriorityChanged(47.0, 7, 9, "ann"),
    Suspend(3, 1),
    JobSuspended(50.0, 3, 1, 20.0, 300, 2.0),
    JobSetAside(51.0, 5, "it raised KeyError", 120.0),
    AppBid(52.0, "sweep", (2, 5), ((1, 2.0), (2, 3.5))),
    NodeLost(53.0, 4),
    NodeDrained(54.0, 3, "a fan", "root"),
    NodeDrained(54.0, 5, "failed to start ranks"),
    NodeResumed(54.0, 5, probe=True),
    NodeRemoved(54.0, 4),
    PolicyOverran(55.0, "it took too long"),
]

AFTER: dict[str, list[Event | Command]] = {
    "nothing": [],
    "what was held goes on": [
        HoldLifted(60.0, 4, "root"), JobReleased(106.0, 2), Start(2, 2, seats((1, 1))),
        JobStarted(108.0, 2, 2, 1.0, 5.0),
    ],
    "the suspended run is resumed, and then its host is stopped": [
        Resume(3, 1, seats((1, 2))), JobResumed(70.0, 3, 1, 4.0, 20.0), Stop(0, 1), JobStopped(75.0, 0, 1, 40.0, 2.0),
    ],
    "all ends": [
        CancelRequested(60.0, 0, 70.0), JobCancelled(65.0, 0), JobCancelled(65.0, 3), JobCompleted(66.0, 1, 1, 80.0),
        JobCancelled(67.0, 5), JobCancelled(68.0, 7), JobCancelled(69.0, 2), JobCancelled(69.0, 4),
    ],
    "nodes change": [
        NodeResumed(60.0, 3), NodeLost(61.0, 0), JobCrashed(61.0, 0, 1, 25.0, False, "node v100-0 was lost", ran=49.0),
        NodeReturned(90.0, 0), NodeJoined(91.0, 6, "newer", "k80", 4, "r1"), Resize(1, 2, seats((2, 1))),
    ],
    "another job comes, and crashes count on": [
        JobSubmitted(60.0, job("next", 60.0, 1, tenant="eve").spec()), Start(8, 1, seats((5, 1))),
        JobStarted(61.0, 8, 1, 1.0, 0.0), JobReleased(106.0, 2), Start(2, 2, seats((5, 1))),
        JobCrashed(110.0, 2, 2, 5.0, True, "rank 0 died", 120.0, None, 5, False, 1), QuotaSet(111.0, "bob", Quota()),
    ],
}  # fmt: skip


def apply(state: State, steps: list[Event | Command]) -> None:
    for step in steps:
        if isinstance(step, Start | Resize | Stop | Suspend | Resume):
            state.apply_commands([step])
        else:
            state.apply_events(step.at, [step])


NUMBERED = {"app", "measured", "seats", "columns", "perf", "lengths", "carry", "register"}
"""What only numbers entries of tables, which a restored state makes anew, and what is not part of an image."""


def seen(moment: Snapshot) -> dict[str, object]:
    """What a policy can reach, by name."""
    values = {f.name: getattr(moment, f.name) for f in fields(moment)} | arrays(moment)
    placements = {name: moment.placement(i) for i, name in enumerate(moment.ids)}
    return {**{name: value for name, value in values.items() if name not in NUMBERED}, "placements": placements}


@pytest.mark.parametrize("steps", AFTER.values(), ids=AFTER.keys())
def test_a_restored_state_shows_policies_the_same_now_and_after_further_events(steps: list[Event | Command]) -> None:
    original, restored = fresh(), fresh()
    apply(original, BEFORE)
    original.carry = None
    restore(restored, decode_image(encode_image(image_of(original))))
    for state in (original, restored):
        apply(state, steps)
    before, after = seen(original.freeze()), seen(restored.freeze())
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert same(value, after[name]) or repr(value) == repr(after[name]), name
    assert (restored.held, restored.live, restored.releases) == (original.held, original.live, original.releases)
    assert encode_image(image_of(restored)) == encode_image(image_of(original))


def test_an_image_has_what_the_state_is_made_of() -> None:
    state = fresh()
    apply(state, BEFORE)
    found = image_of(state)
    assert (found.now, found.submitted, found.kinds, found.down) == (55.0, 8, ("v100", "k80"), (4,))
    assert [each.number for each in found.jobs] == [0, 1, 2, 3, 4, 5, 7]
    assert [name for name, _ in found.tenants] == ["ann", "bob", "cy", "dee"]
    assert dict(found.tenants)["dee"] > 0.0
    assert (found.drained, found.probed) == (((3, "a fan"), (5, "failed to start ranks")), (5,))
    assert (found.removed, [node.name for node in found.joined]) == ((4,), ["new"])
    assert found.bids == (("sweep", StandingBid(52.0, (2, 5), ((1, 2.0), (2, 3.5)))),)
    assert [event.job for event in found.set_aside] == [5]
    assert (dict(found.quotas)["ann"], found.overran) == (Quota(queued=5, gpus=6), "it took too long")
    runs, _, crashed, suspended, held, *_ = found.jobs
    assert (runs.seats, crashed.release, held.on_hold) == (seats((0, 2)), 106.0, True)
    assert (crashed.avoided, suspended.suspended_bytes) == ((2,), 300)
    assert suspended.suspended is not None
    assert np.all(np.isfinite([value for value in runs.floats if abs(value) < 1e300]))
    assert catalog().models
