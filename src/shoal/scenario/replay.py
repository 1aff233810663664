"""Journal files replayed: every decision derived again, and why each job waited."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.errors import InputError, JournalError
from shoal.core.snapshot import Snapshot
from shoal.core.units import Seconds
from shoal.engine.loop import Judgement
from shoal.engine.replay import ReplayDifference, Replayed, Scheduler, replay
from shoal.engine.state_image import same_image
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
    files = _files(path)
    named = _named_files(path)
    if len(policy_files) != len(named):
        raise InputError("policy", ", ".join(policy_files) or None, _explain_files(path, named))
    loaded = dict(zip(named, policy_files, strict=True))

    def scheduler_of(header: Mapping[str, Any]) -> Scheduler:
        scenario = Scenario.of_settings(header)
        scenario = replace(scenario, policy=loaded.get(scenario.policy, scenario.policy))
        return (scenario if throughputs is None else replace(scenario, throughputs=throughputs)).make_scheduler()

    total, records = Replayed(0, 0, 0, 0.0), 0
    for file in files:
        journal = JournalFile(file)
        part = replay(journal.read, scheduler_of, progress, watch)
        if file != files[0] and not same_image(part.begin, total.end):
            raise ReplayDifference(f"{file} does not begin where the segment before it ends", total.now)
        if journal.cut is not None and file != files[-1]:
            raise JournalError(f"{file}: {journal.cut}")
        total, records = total.followed_by(part), records + journal.records
    journal.records = records
    return total, journal, settings_of(JournalFile(files[0]).read)


def _raw(path: Path) -> Iterator[list[Any]]:
    """Yield the raw records of all segments."""
    return chain.from_iterable(JournalFile(file).raw() for file in _files(path))


def _files(path: Path) -> list[Path]:
    """Return the segments of a live cluster's home folder, or the journal itself."""
    return segments(path / JOURNAL) if (path / JOURNAL).is_file() else [path]


def policies_of(path: Path) -> list[tuple[str, Seconds]]:
    """Return the policies that decided in a journal, each with the time from which it did."""
    found: list[tuple[str, Seconds]] = []
    now = 0.0
    for record in _raw(path):
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
    """What happened to each job of a journal file or a home folder, with the reasons it waited, by a replay.

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
    return stories(read_history(_raw(path)), reasons, until), difference


def reason_changes(path: Path) -> list[WaitingReason]:
    """Return the reasons for the verdicts in a journal file, by a replay: of each job where the kind of reason changes.

    They end where this version decides differently from the one that wrote the journal; there are none if a policy was
    a class in a file.
    """
    found: list[WaitingReason] = []
    last: dict[int, int] = {}

    def watch(snapshot: Snapshot, judgement: Judgement) -> None:
        verdicts, rows = judgement.verdicts, snapshot.columns.rows.tolist()
        codes = (verdicts.codes.astype(np.int64) * 2 + (verdicts.gpus > 0)).tolist()
        for i, (row, code) in enumerate(zip(rows, codes, strict=True)):
            if last.get(row) != code:
                last[row] = code
                found.append(WaitingReason(snapshot.now, row, code, verdicts.reason(i).sentence()))

    with suppress(ReplayDifference, JournalError, InputError):
        replay_file(path, watch=watch)
    return found
