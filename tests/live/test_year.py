"""A short form of ``tests.live.year``: what the control plane holds in memory does not grow with ended jobs."""

import gc
from collections import Counter
from collections.abc import Sized
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from weakref import ref

import pytest
from tests.live.year import Year, YearClock, opened
from tests.live.year_site import DAY

from shoal.live.compaction import MOST_ENDED
from shoal.scenario.replay import replay_file
from shoal.store.segments import archived


def test_memory_and_archive_are_bounded_by_live_jobs_and_the_retention(tmp_path: Path) -> None:
    clock, most = YearClock(), 0
    with opened(tmp_path, clock, keep=0.5 * DAY, cluster="gpu:12x8") as plane:
        plane.compaction.most_records = 1000
        year = Year(plane, clock, per_day=1000, live=50)
        year.hello()
        for tenth in range(1, 21):
            year.advance(tenth * DAY / 10)
            state, runs = plane.scheduler.state, plane.backend._runs
            accounts, register, rows = plane.accounts, state.register, state._jobs
            held: list[Sized] = [accounts.accounts, accounts.numbers, accounts.keys, accounts.runs.jobs, runs._jobs]
            held += [register.ids, register.specs, register.numbers, rows._slots, rows.app_index]
            most = max(most, *map(len, held))
        assert plane.accounts.completed > 1600
        assert plane.accounts.crashes > 50
        assert most < 1000, "at most the live jobs and those that ended in one segment"
        assert len(state.register.measurements) < 1000
        assert plane.compaction.ended.count() < 1000
        assert len(archived(plane.journal.path)) < 10
        assert sum(row.gpu_seconds for row in plane.share(None)) > 1600 * 0.5 * 50 * DAY / 1000
        live = set(plane.accounts.live)
    with opened(tmp_path, clock, keep=0.5 * DAY, cluster="gpu:12x8") as plane:
        assert set(plane.accounts.live) == live
        assert plane.accounts.submitted == year.submitted
    assert replay_file(tmp_path)[0].decisions > 1000


def test_a_control_plane_holds_as_many_objects_after_thousands_of_ended_jobs_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds = (
        ("live.decision_log._MOST_TIMES", 200), ("live.decision_log._MOST_MOVED", 20), ("live.job_ids._FIRST_LOOK", 20),
        ("live.job_changes._MOST_REMEMBERED", 100), ("live.journal_writer._MOST_TIMINGS", 50),
        ("live.seat_history._MOST_SPANS", 20), ("perf.length_history.MOST_KEYS", 50),
    )  # fmt: skip
    for name, most in bounds:
        monkeypatch.setattr(f"shoal.{name}", most)
    clock = YearClock()
    held: list[Counter[str]] = []
    with opened(tmp_path, clock, keep=0.2 * DAY, cluster="gpu:8x8") as plane:
        year = Year(plane, clock, per_day=2000, live=20, grain=60.0)
        year.hello()
        for _ in range(4):
            _run_and_end(year, jobs=300)
            held.append(_objects_of(plane))
        assert plane.accounts.submitted > 1200
        assert plane.compaction.ended.count() < 900, "the first jobs were dropped"
    grown = {kind: (held[1][kind], count) for kind, count in held[3].items() if count - held[1][kind] > 40}
    assert not grown, "two thirds of all jobs ended between the two counts"
    assert held[3].total() < 1.02 * held[1].total()


def _run_and_end(year: Year, jobs: int) -> None:
    """Let this many jobs arrive and all live ones end, and begin a segment."""
    plane, clock = year.plane, year.clock
    if year.submitted:  # so that the next arrives now, and the others as often as before
        year.per_day = max(1, round(year.submitted * DAY / clock.time))
    goal = plane.accounts.submitted + jobs
    while plane.accounts.submitted < goal:
        year.advance(clock.time + DAY / 200)
    year.per_day = 1
    for _ in range(200):
        year.advance(clock.time + DAY / 50)
        if not plane.accounts.live:
            break
    assert not plane.accounts.live
    plane.compaction.most_ended = 1
    plane.backend.record()
    plane.step()
    plane.compaction.most_ended = MOST_ENDED
    year.settle()
    assert not plane.accounts.accounts


def _objects_of(plane: object) -> Counter[str]:
    """Return how many objects of each type a control plane holds, without code, numbers and weak references."""
    gc.collect()
    others = (ModuleType, FunctionType, BuiltinFunctionType, MethodType, type, CodeType, FrameType, int, float, ref)
    seen, found, left = {id(plane)}, Counter[str](), [plane]
    while left:
        holder = left.pop()
        for one in [*gc.get_referents(holder), *(holder if isinstance(holder, dict) else ())]:
            if id(one) not in seen and not isinstance(one, others):
                seen.add(id(one))
                found[type(one).__name__] += 1
                left.append(one)
    return found
