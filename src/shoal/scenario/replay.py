"""Journal files replayed: every decision derived again, and why each job waited."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.errors import InputError, JournalError
from shoal.core.snapshot import Snapshot
from shoal.core.units import Seconds
from shoal.engine.loop import Judgement
from shoal.engine.replay import ReplayDifference, Replayed, Scheduler, replay
from shoal.policy.registry import is_policy_file
from shoal.report.files import JOURNAL
from shoal.report.history import read_history
from shoal.report.job_story import Story, WaitingReason, stories
from shoal.scenario.scenario import Scenario
from shoal.store.codec import EVENTS, HEADER
from shoal.store.journal import JournalFile, settings_of
from shoal.store.segments import segments


def replay_file(
    path: Path,
    *,
    throughputs: str | None = None,
    policy_files: Sequence[str] = (),
    progress: Callable[[int], None] | None = None,
    watch: Callable[[Snapshot, Judgement], None] | None = None,
) -> tuple[Replayed, JournalFile, dict[str, Any]]:
    """Derive every decision of a journal file again; returns the counts, the file read, and its settings.

    Of a live cluster's home folder every segment is replayed, each from its base, which must be where the segment
    before it ends.

    ``throughputs`` replaces the path in the header. ``policy_files`` are the policies, ``file.py:Class``, to take for
    those of the journal that are classes in files, in their order: the files that a journal names are not imported,
    since anyone may have written it. ``progress`` receives the number of decisions so far, ``watch``
    each snapshot with its judgement. The first difference raises ``ReplayDifference``.
    """
    if path.is_dir():
        return _replay_home(path, throughputs, progress, watch)
    settings = settings_of(JournalFile(path).read)
    named = _named_files(path)
    if len(policy_files) != len(named):
        raise InputError("policy", ", ".join(policy_files) or None, _explain_files(path, named))
    loaded = dict(zip(named, policy_files, strict=True))

    def scheduler_of(header: Mapping[str, Any]) -> Scheduler:
        scenario = Scenario.of_settings(header)
        scenario = replace(scenario, policy=loaded.get(scenario.policy, scenario.policy))
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


def policies_of(path: Path) -> list[tuple[str, Seconds]]:
    """Return the policies that decided in a journal, each with the time from which it did."""
    found: list[tuple[str, Seconds]] = []
    now = 0.0
    for record in JournalFile(path).raw():
        if record[0] == EVENTS:
            now = record[1]
        elif record[0] == HEADER and (not found or found[-1][0] != record[2]["policy"]):
            found.append((record[2]["policy"], now))
    return found


def _named_files(path: Path) -> list[str]:
    """Return the policies of a journal that are classes in files, in order, each once."""
    return list(dict.fromkeys(policy for policy, _ in policies_of(path) if is_policy_file(policy)))


def _explain_files(path: Path, named: Sequence[str]) -> str:
    if not named:
        return f"{path} names no policy file: leave --policy out"
    files = " and ".join(named)
    return f"{path} was decided by {files}, which is not imported from a journal: give --policy FILE:Class for it"


def read_stories(path: Path) -> tuple[list[Story], str]:
    """What happened to each job of a journal file, with the reasons it waited, which a replay derives again.

    The second value is empty, or says how this version decides differently from the one that wrote the journal, or that
    a policy was a class in a file: from then on no reasons are known.
    """
    reasons: list[WaitingReason] = []
    until, difference = inf, ""
    named = _named_files(path)
    if named:
        until, difference = 0.0, f"its policy file {named[0]} is not imported from a journal"

    def watch(snapshot: Snapshot, judgement: Judgement) -> None:
        verdicts, rows = judgement.verdicts, snapshot.columns.rows
        for i in np.flatnonzero(verdicts.gpus == 0).tolist():
            reason = verdicts.reason(i)
            reasons.append(WaitingReason(snapshot.now, int(rows[i]), int(reason.template.code), reason.sentence()))

    try:
        if not named:
            replay_file(path, watch=watch)
    except ReplayDifference as found:
        until, difference = found.at, str(found)
    return stories(read_history(JournalFile(path).raw()), reasons, until), difference
