"""Journal files replayed: every decision derived again, and why each job waited."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.errors import JournalError
from shoal.core.snapshot import Snapshot
from shoal.engine.loop import Judgement
from shoal.engine.replay import ReplayDifference, Replayed, Scheduler, replay
from shoal.report.files import JOURNAL
from shoal.report.history import read_history
from shoal.report.job_story import Story, WaitingReason, stories
from shoal.scenario.scenario import Scenario
from shoal.store.journal import JournalFile, settings_of
from shoal.store.segments import segments


def replay_file(
    path: Path,
    *,
    throughputs: str | None = None,
    progress: Callable[[int], None] | None = None,
    watch: Callable[[Snapshot, Judgement], None] | None = None,
) -> tuple[Replayed, JournalFile, dict[str, Any]]:
    """Derive every decision of a journal file again; returns the counts, the file read, and its settings.

    Of a live cluster's home folder every segment is replayed, each from its base, which must be where the segment
    before it ends.

    ``throughputs`` replaces the path in the header; ``progress`` receives the number of decisions so far, ``watch``
    each snapshot with its judgement. The first difference raises ``ReplayDifference``.
    """
    if path.is_dir():
        return _replay_home(path, throughputs, progress, watch)
    settings = settings_of(JournalFile(path).read)

    def scheduler_of(header: Mapping[str, Any]) -> Scheduler:
        scenario = Scenario.of_settings(header)
        return (scenario if throughputs is None else replace(scenario, throughputs=throughputs)).make_scheduler()

    journal = JournalFile(path)
    return replay(journal.read, scheduler_of, progress, watch), journal, settings


def _replay_home(
    home: Path,
    throughputs: str | None,
    progress: Callable[[int], None] | None,
    watch: Callable[[Snapshot, Judgement], None] | None,
) -> tuple[Replayed, JournalFile, dict[str, Any]]:
    files = segments(home / JOURNAL)
    total, records, end = Replayed(0, 0, 0, 0.0), 0, b""
    for path in files:
        part, journal, settings = replay_file(path, throughputs=throughputs, progress=progress, watch=watch)
        if path != files[0] and part.begin != end:
            raise ReplayDifference(f"{path} does not begin where the segment before it ends", total.now)
        if journal.cut is not None and path != files[-1]:
            raise JournalError(f"{path}: {journal.cut}")
        end, records = part.end, records + journal.records
        total = Replayed(
            total.decisions + part.decisions,
            total.events + part.events,
            total.commands + part.commands,
            part.now,
            total.begin or part.begin,
            end,
        )
    journal.records = records
    return total, journal, settings


def read_stories(path: Path) -> tuple[list[Story], str]:
    """What happened to each job of a journal file, with the reasons it waited, which a replay derives again.

    The second value is empty, or says how this version decides differently from the one that wrote the journal: from
    that decision on no reasons are known.
    """
    reasons: list[WaitingReason] = []
    until, difference = inf, ""

    def watch(snapshot: Snapshot, judgement: Judgement) -> None:
        verdicts, rows = judgement.verdicts, snapshot.columns.rows
        for i in np.flatnonzero(verdicts.gpus == 0).tolist():
            reason = verdicts.reason(i)
            reasons.append(WaitingReason(snapshot.now, int(rows[i]), int(reason.template.code), reason.sentence()))

    try:
        replay_file(path, watch=watch)
    except ReplayDifference as found:
        until, difference = found.at, str(found)
    return stories(read_history(JournalFile(path).raw()), reasons, until), difference
