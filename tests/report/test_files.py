from pathlib import Path

import numpy as np
import pytest
from tests.report.stored import saved

from shoal.core.errors import InputError
from shoal.report.files import (
    JOBS,
    SUMMARY,
    find_runs,
    from_parquet,
    run_directory,
    to_json,
    to_parquet,
)
from shoal.report.history import read_history
from shoal.report.metrics import job_table, summarize
from shoal.store.journal import MemoryJournal


def test_what_is_written_is_read_back(three_jobs: MemoryJournal, tmp_path: Path) -> None:
    directory = saved(three_jobs, tmp_path, "by-hand")
    assert directory == tmp_path / "by-hand-seed7"
    (run,) = find_runs([tmp_path])
    assert (run.policy, run.seed, run.summary["avg_jct"]) == ("by-hand", 7, 47 / 3)
    history = run.history()
    assert history is not None
    table = job_table(history)
    assert run.jobs.rows() == table.rows()


def test_equal_results_give_equal_bytes(three_jobs: MemoryJournal) -> None:
    first, second = (read_history(three_jobs.raw()) for _ in range(2))
    a, b = job_table(first), job_table(second)
    assert to_parquet(a) == to_parquet(b)
    assert to_json(summarize(first, a)) == to_json(summarize(second, b))


def test_what_is_not_known_stays_unknown_in_parquet(three_jobs: MemoryJournal) -> None:
    cut = MemoryJournal(three_jobs.records[:-4])
    table = job_table(read_history(cut.raw()))
    again = from_parquet(to_parquet(table))
    assert np.isnan(again.jct).tolist() == [False, True, True]
    assert again.rows() == table.rows()


@pytest.mark.parametrize(
    ("policy", "name"),
    [
        ("fifo", "fifo-seed3"),
        ("gavel.max-min:space_sharing=true,aware=false", "gavel.max-min-space_sharing=true-aware=false-seed3"),
        ("../up", "up-seed3"),
    ],
)
def test_a_policy_names_one_plain_directory(policy: str, name: str, tmp_path: Path) -> None:
    assert run_directory(tmp_path, policy, 3) == tmp_path / name


def test_directories_without_whole_runs_are_named(three_jobs: MemoryJournal, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such directory"):
        find_runs([tmp_path / "nowhere"])
    with pytest.raises(InputError, match="holds no run"):
        find_runs([tmp_path])
    directory = saved(three_jobs, tmp_path, "by-hand")
    for name, content in ((JOBS, b"no"), (SUMMARY, b"{")):
        whole = (directory / name).read_bytes()
        (directory / name).write_bytes(content)
        with pytest.raises(InputError, match="not a whole run"):
            find_runs([tmp_path])
        (directory / name).write_bytes(whole)
    assert len(find_runs([tmp_path, directory])) == 1
