"""A short form of ``tests.live.year``: what the control plane holds in memory does not grow with ended jobs."""

from collections.abc import Sized
from pathlib import Path

from tests.live.year import Year, YearClock, opened
from tests.live.year_site import DAY

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
