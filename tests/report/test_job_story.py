"""What a journal tells of each job, in words; the journal is the one of ``conftest``."""

from collections.abc import Callable

from shoal.core.commands import Command, Resize, Start, Stop
from shoal.core.events import BatchChanged, Event, JobCompleted, JobStarted, JobStopped, JobSubmitted
from shoal.core.job import JobSpec
from shoal.core.topology import Placement
from shoal.report.history import read_history
from shoal.report.job_story import WaitingReason, stories
from shoal.store.journal import MemoryJournal

_BLOCKED, _STOPPING = 1, 2


def test_waiting_counts_by_kind_of_reason_with_its_last_sentence(three_jobs: MemoryJournal) -> None:
    reasons = [
        WaitingReason(0.0, 1, _BLOCKED, "waits for 4 GPUs, 2 free"),
        WaitingReason(5.0, 1, _BLOCKED, "waits for 4 GPUs, none free"),
        WaitingReason(8.0, 1, _STOPPING, "waits until c has saved"),
        WaitingReason(8.0, 2, _BLOCKED, "waits for 2 GPUs, none free"),
    ]
    a, b, c = stories(read_history(three_jobs.raw()), reasons)

    assert (a.id, a.outcome, a.stops, a.resizes, a.waited) == ("a", "completed", 0, 0, 0.0)
    assert [(w.seconds, w.sentence) for w in b.waits] == [
        (8.0, "waits for 4 GPUs, none free"),
        (2.0, "waits until c has saved"),
    ]
    assert (c.stops, c.waited) == (1, 12.0)
    assert c.lines() == [
        "c: completed after 17.0 s; 2 GPUs 5.0–8.0 s, 2 GPUs 20.0–22.0 s; stopped and resumed once",
        "waited 12.0 s: waits for 2 GPUs, none free",
    ]


def test_work_that_was_not_saved_counts_as_lost_and_not_as_resumed(
    new_journal: Callable[..., MemoryJournal],
    new_spec: Callable[..., JobSpec],
    telling: Callable[[MemoryJournal], Callable[[float, list[Event], list[Command]], None]],
) -> None:
    journal = new_journal("v100:1x4")
    tell = telling(journal)
    seats = Placement(((0, 1),))
    tell(0.0, [JobSubmitted(0.0, new_spec("d", 0.0, 1, 30.0))], [Start(0, 1, seats)])
    tell(10.0, [JobStarted(1.0, 0, 1, 1.0, 0.0)], [Stop(0, 1)])
    tell(11.0, [JobStopped(11.0, 0, 1, 2.0, 7.0)], [Start(0, 2, seats)])
    tell(60.0, [JobStarted(22.0, 0, 2, 1.0, 2.0), JobCompleted(60.0, 0, 2, 30.0)], [])
    (story,) = stories(read_history(journal.raw()), [])
    assert story.lost == 7.0
    assert story.lines()[0].endswith("; stopped and started again once; the work of 7.0 s was lost")


def test_a_reason_after_the_last_known_one_is_not_made_up(three_jobs: MemoryJournal) -> None:
    reasons = [
        WaitingReason(0.0, 1, _BLOCKED, "waits for 4 GPUs, 2 free"),
        WaitingReason(8.0, 2, _BLOCKED, "waits for 2 GPUs, none free"),
    ]
    _, b, c = stories(read_history(three_jobs.raw()), reasons, until=9.0)
    for story, known, unknown in ((b, 9.0, 1.0), (c, 1.0, 11.0)):
        assert story.waited == known + unknown
        assert unknown in [w.seconds for w in story.waits if w.sentence == "the reason is not known"]


def test_resizes_and_batch_sizes_are_listed_in_order(
    new_journal: Callable[..., MemoryJournal],
    new_spec: Callable[..., JobSpec],
    telling: Callable[[MemoryJournal], Callable[[float, list[Event], list[Command]], None]],
) -> None:
    journal = new_journal("v100:1x4")
    tell = telling(journal)
    spec = new_spec("d", 0.0, 1, 30.0, batch_size=64)
    tell(0.0, [JobSubmitted(0.0, spec)], [Start(0, 1, Placement(((0, 1),)))])
    tell(4.0, [JobStarted(1.0, 0, 1, 1.0, 0.0)], [Resize(0, 2, Placement(((0, 2),)))])
    tell(9.0, [JobStarted(6.0, 0, 2, 2.0, 4.0), BatchChanged(9.0, 0, 2, 3.0, 10.0, 128)], [])
    tell(20.0, [JobCompleted(20.0, 0, 2, 30.0)], [])

    [story] = stories(read_history(journal.raw()), [])
    assert story.batches == (64, 128)
    assert story.lines() == [
        "d: completed after 20.0 s; 1 GPU 0.0–4.0 s, 2 GPUs 4.0–20.0 s; resized once; batch 64 → 128"
    ]
    assert story.document()["runs"] == [
        {"since": 0.0, "until": 4.0, "gpus": 1},
        {"since": 4.0, "until": 20.0, "gpus": 2},
    ]
