import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.core.errors import InputError
from shoal.report import chart_data
from shoal.report.files import (
    JOBS,
    JOURNAL,
    SUMMARY,
    find_runs,
    from_parquet,
    run_directory,
    to_json,
    to_parquet,
    write_run,
)
from shoal.report.history import read_history
from shoal.report.html import page, write_page
from shoal.report.metrics import job_table, summarize
from shoal.store.codec import checksum
from shoal.store.journal import MemoryJournal


def saved(journal: MemoryJournal, base: Path, policy: str, *, keep_journal: bool = True, **more: object) -> Path:
    history = read_history(journal.raw())
    table = job_table(history)
    summary = {**summarize(history, table), "policy": policy, **more}
    directory = run_directory(base, policy, summary["seed"])
    write_run(directory, summary, table)
    if keep_journal:
        connection = sqlite3.connect(directory / JOURNAL)
        connection.execute("CREATE TABLE record (seq INTEGER PRIMARY KEY, body BLOB NOT NULL, crc INTEGER NOT NULL)")
        rows = [(body, checksum(body)) for body in journal.records]
        connection.executemany("INSERT INTO record (body, crc) VALUES (?, ?)", rows)
        connection.commit()
        connection.close()
    return directory


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


def test_the_page_needs_nothing_from_elsewhere(three_jobs: MemoryJournal, tmp_path: Path) -> None:
    saved(three_jobs, tmp_path, "first")
    saved(three_jobs, tmp_path, "second", avg_jct=1.0)
    runs = find_runs([tmp_path])
    write_page(runs, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    own = text.replace("http://www.w3.org/2000/svg", "").replace("url(#", "")  # names, not addresses
    for reference in ("http:", "https:", "src=", "href=", "@import", "url(", "fetch("):
        assert reference not in own
    assert page(runs) == text
    assert len(text.encode()) < 50_000


def test_runs_of_one_policy_with_other_settings_have_curves_of_their_own(
    three_jobs: MemoryJournal, tmp_path: Path
) -> None:
    saved(three_jobs, tmp_path / "a", "las", settings={"noise": 0.0, "placement": "any"})
    saved(three_jobs, tmp_path / "b", "las", settings={"noise": 0.2, "placement": "any"})
    text = page(find_runs([tmp_path]))
    assert data_of(text)[0]["policies"] == ["las", "las (noise 0.2)"]
    assert "<dt>Placement</dt><dd>any</dd>" in text
    assert "<dt>Noise</dt>" not in text


def data_of(text: str) -> Any:
    start = text.index('id="data">') + len('id="data">')
    return json.loads(text[start : text.index("</script>", start)])


def test_a_chart_of_more_bars_than_a_screen_shows_is_left_out(
    three_jobs: MemoryJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(three_jobs, tmp_path, "first")
    monkeypatch.setattr(chart_data, "MOST_BARS", 3)
    (part,) = data_of(page(find_runs([tmp_path])))
    assert list(part["held"]["first"]) == ["By tenant", "By gang size"]


def test_the_page_holds_the_charts_of_each_policy(three_jobs: MemoryJournal, tmp_path: Path) -> None:
    saved(three_jobs, tmp_path, "first")
    saved(three_jobs, tmp_path, "without-journal", keep_journal=False)
    text = page(find_runs([tmp_path]))
    (part,) = data_of(text)
    assert part["policies"] == ["first", "without-journal"]
    assert list(part["time"]) == list(part["held"]) == ["first"]
    gantt = part["held"]["first"]["By job"]
    # Two jobs on 2 GPUs in three stretches, one on 4 in one.
    assert [(g["label"], len(g["row"])) for g in gantt["groups"]] == [("2 GPUs", 3), ("4 GPUs", 1)]
    assert part["jct"]["first"]["y"][-1] == 1.0


def test_no_name_reorders_or_commands_the_page(three_jobs: MemoryJournal, tmp_path: Path) -> None:
    evil = "a\u202eb\x1b[2J\u2028"
    saved(three_jobs, tmp_path, evil, settings={"placement": evil})
    text = page(find_runs([tmp_path]))
    assert not set(evil) & set("\u202e\x1b\u2028") & set(text)
    assert data_of(text)[0]["policies"] == [evil]
    assert "<dd>a\\u202eb\\x1b[2J\\u2028</dd>" in text


def test_names_cannot_break_out_of_the_page(three_jobs: MemoryJournal, tmp_path: Path) -> None:
    saved(three_jobs, tmp_path, "</script><b>bold</b>")
    text = page(find_runs([tmp_path]))
    assert "<b>bold" not in text
