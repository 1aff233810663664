"""The table of a job's life: complete, without dead ends, and the same as the picture in the documentation."""

from pathlib import Path

import pytest

from shoal.core.lifecycle import TRANSITIONS, JobState, Trigger, diagram

DOCS = Path(__file__).resolve().parents[2] / "docs"


def reachable(start: JobState) -> set[JobState]:
    seen, edge = {start}, [start]
    while edge:
        state = edge.pop()
        following = {b for (a, _), b in TRANSITIONS.items() if a is state} - seen
        seen |= following
        edge += following
    return seen


def test_every_state_is_reachable_from_pending() -> None:
    assert reachable(JobState.PENDING) == set(JobState)


def test_every_trigger_is_used() -> None:
    assert {trigger for _, trigger in TRANSITIONS} == set(Trigger)


@pytest.mark.parametrize("state", [s for s in JobState if s.live], ids=lambda s: s.name)
def test_a_live_job_can_always_be_cancelled(state: JobState) -> None:
    assert TRANSITIONS[state, Trigger.CANCELLED] is JobState.CANCELLED


@pytest.mark.parametrize(
    "state", [s for s in JobState if s.live and s is not JobState.CANCELLING], ids=lambda s: s.name
)
def test_a_live_job_that_is_not_cancelled_can_still_complete(state: JobState) -> None:
    assert JobState.COMPLETED in reachable(state)


def test_an_ended_job_stays_ended() -> None:
    assert not [a for a, _ in TRANSITIONS if not a.live]


def test_only_the_ring_starts_a_job() -> None:
    into_starting = {trigger for (_, trigger), b in TRANSITIONS.items() if b is JobState.STARTING}
    assert into_starting == {Trigger.START, Trigger.RESIZE, Trigger.RESUME}


def test_the_diagram_has_one_arrow_for_each_transition() -> None:
    lines = diagram().splitlines()
    assert lines[0] == "stateDiagram-v2"
    arrows = {line.strip() for line in lines[1:]}
    assert len(arrows) == len(lines) - 1 == 1 + len(TRANSITIONS) + len([s for s in JobState if not s.live])
    assert "[*] --> PENDING: submitted" in arrows
    assert "RUNNING --> STOPPING: stop" in arrows
    assert "STOPPING --> PENDING: stopped" in arrows
    assert "FAILED --> [*]" in arrows
