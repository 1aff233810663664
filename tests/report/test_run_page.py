"""The page of runs: one small file with the views of the cluster's page, fed with the runs' data."""

import gzip
import json
import re
import shutil
import subprocess
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.report.stored import saved

from shoal.core.commands import Command, Start
from shoal.core.events import Event, JobCompleted, JobCrashed, JobStarted, JobSubmitted
from shoal.core.job import JobSpec
from shoal.core.topology import Placement
from shoal.report import bundle, chart_data, run_page
from shoal.report.files import find_runs
from shoal.report.job_story import WaitingReason
from shoal.report.run_page import MOST_BYTES, page, write_page
from shoal.store.journal import MemoryJournal

Telling = Callable[[MemoryJournal], Callable[[float, list[Event], list[Command]], None]]


def data_of(text: str) -> Any:
    start = text.index('id="data">') + len('id="data">')
    return json.loads(gzip.decompress(b64decode(text[start : text.index("</script>", start)])))


def test_the_page_needs_nothing_from_elsewhere(three_jobs: MemoryJournal, tmp_path: Path) -> None:
    saved(three_jobs, tmp_path, "first")
    saved(three_jobs, tmp_path, "second", avg_jct=1.0)
    runs = find_runs([tmp_path])
    write_page(runs, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    own = text.replace("http://www.w3.org/2000/svg", "").replace('"https://record/"', "")  # names, not addresses
    assert not re.search(r"https?:|src=|@import|url\(|fetch\(|EventSource|^\s*(import|export) ", own, re.MULTILINE)
    assert set(re.findall(r"default-src [^;]*|connect-src", own)) == {"default-src 'none'"}
    assert page(runs) == text
    assert len(text.encode()) < 140_000


def test_the_script_of_the_page_has_no_mistake_of_syntax(three_jobs: MemoryJournal, tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node")
    script = bundle.bundle("run.js", {"api.js": "record.js"})
    checked = subprocess.run([node, "--check", "--input-type=module"], input=script, text=True, timeout=60, check=False)
    assert checked.returncode == 0


def test_every_import_of_the_bundle_names_an_export() -> None:
    script = bundle.bundle("run.js", {"api.js": "record.js"})
    exports = {
        name: set(filter(None, names.split(", ")))
        for name, names in re.findall(r"^const (\$\w+) = \(\(\) => \{$.*?^return \{ (.*?) \};$", script, re.M | re.S)
    }
    uses = re.findall(r"^const \{([^}]*)\} = (\$\w+);$", script, re.MULTILINE)
    assert len(uses) > 20
    missing = [(n, m) for names, m in uses for n in names.replace(",", " ").split() if n not in exports[m]]
    assert missing == []


def test_a_form_of_import_that_the_bundle_does_not_know_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "web_text", lambda name: 'import dom from "./dom.js";\n')
    with pytest.raises(ValueError, match=r"run\.js: the bundle has no rule for: import dom"):
        bundle.bundle("run.js")


def test_runs_of_one_policy_with_other_settings_have_curves_of_their_own(
    three_jobs: MemoryJournal, tmp_path: Path
) -> None:
    saved(three_jobs, tmp_path / "a", "las", settings={"noise": 0.0, "placement": "any"})
    saved(three_jobs, tmp_path / "b", "las", settings={"noise": 0.2, "placement": "any"})
    (place,) = data_of(page(find_runs([tmp_path])))
    assert place["policies"] == list(place["jct"]) == ["las", "las (noise 0.2)"]
    facts = dict(place["facts"])
    assert (facts["Placement"], "Noise" in facts) == ("any", False)


def test_settings_that_are_times_have_units(three_jobs: MemoryJournal, tmp_path: Path) -> None:
    saved(three_jobs, tmp_path, "las", settings={"most_lost": 600.0, "restart_cost": "job", "round": 360.0})
    (place,) = data_of(page(find_runs([tmp_path])))
    facts = dict(place["facts"])
    assert facts["Most lost by a stop"] == "10 min"
    assert (facts["Restart cost"], facts["Round"]) == ("as each job says", "6 min")


def test_the_page_has_the_seats_states_and_use_of_each_run_with_a_journal(
    three_jobs: MemoryJournal, tmp_path: Path
) -> None:
    saved(three_jobs, tmp_path, "first")
    saved(three_jobs, tmp_path, "without-journal", keep_journal=False)
    (place,) = data_of(page(find_runs([tmp_path])))
    assert place["policies"] == ["first", "without-journal"]
    assert list(place["time"]) == list(place["runs"]) == ["first"]
    run = place["runs"]["first"]
    assert (run["tick"], run["end"], run["total"], "node_use" in run) == (1e-3, 22_000, 3, False)
    seats = run["seats"]
    assert list(zip(seats["job"], seats["run"], seats["gpus"], seats["since"], seats["until"], strict=True)) == [
        (0, 1, 2, 0, 10_000),
        (1, 1, 4, 10_000, 20_000),
        (2, 1, 2, 5_000, 8_000),
        (2, 2, 2, 20_000, 22_000),
    ]
    assert run["jobs"]["id"] == ["a", "b", "c"]
    assert run["jobs"]["ended"] == [10_000, 20_000, 22_000]
    usage = run["usage"]
    assert dict(zip(usage["at"], usage["used"], strict=True)) == {0: 2, 5_000: 4, 8_000: 2, 10_000: 4, 20_000: 2}
    assert usage["waiting"] == [1, 1, 2, 1, 0]
    assert place["jct"]["first"]["y"][-1] == 1.0


def test_a_run_too_large_for_the_page_lists_some_jobs_and_keeps_the_use_of_all(
    new_journal: Callable[..., MemoryJournal], new_spec: Callable[..., JobSpec], telling: Telling, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    journal = new_journal("v100:2x2", policy="fifo", seed=0, workload="many")
    tell = telling(journal)
    for i in range(200):  # one after the other, 10 s each; job 150 waits longest
        at = 10.0 * i
        tell(
            at,
            [JobSubmitted(0.0 if i == 150 else at, new_spec(f"j{i}", at, 2, 10.0))],
            [Start(i, 1, Placement(((i % 2, 2),)))],
        )
        tell(at + 10.0, [JobStarted(at, i, 1, 1.0, 0.0), JobCompleted(at + 10.0, i, 1, 10.0)], [])
    saved(journal, tmp_path, "fifo")
    runs = find_runs([tmp_path])
    monkeypatch.setattr(run_page, "_MOST_SEATS", (100, 40))
    monkeypatch.setattr(run_page, "MOST_BYTES", len(page(runs)) - 100)
    (place,) = data_of(page(runs))
    run = place["runs"]["fifo"]
    assert (run["total"], len(run["jobs"]["id"]), len(run["seats"]["job"])) == (200, 20, 20)
    assert "j150" in run["jobs"]["id"]
    assert len(run["node_use"]) == 100  # each node is in use half of the time, in turn
    assert {sum(each) for each in run["node_use"]} == {2}
    assert set(run["usage"]["used"]) == {2}


def test_names_reorder_and_command_nothing_and_cannot_break_out(three_jobs: MemoryJournal, tmp_path: Path) -> None:
    evil = "a\u202eb\x1b[2J\u2028</script><b>bold</b>"
    saved(three_jobs, tmp_path, evil, settings={"placement": evil})
    text = page(find_runs([tmp_path]))
    assert not set("\u202e\x1b\u2028") & set(text)
    assert "<b>bold" not in text
    (place,) = data_of(text)
    assert place["policies"] == ["a\\u202eb\\x1b[2J\\u2028</script><b>bold</b>"]


def test_times_of_a_short_run_are_in_seconds_and_of_a_longer_one_in_hours(
    three_jobs: MemoryJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(three_jobs, tmp_path, "by-hand")
    (place,) = data_of(page(find_runs([tmp_path])))
    assert (place["unit"], place["jct"]["by-hand"]["x"]) == ("s", [10, 17, 20])
    monkeypatch.setattr(chart_data, "_UNITS", chart_data._UNITS[2:])
    (place,) = data_of(page(find_runs([tmp_path])))
    assert place["unit"] == "h"
    assert place["jct"]["by-hand"]["x"][0] == pytest.approx(10 / 3600, rel=1e-4)


def test_a_live_run_has_no_fairness_and_says_when_a_job_crashed(
    new_journal: Callable[..., MemoryJournal], new_spec: Callable[..., JobSpec], telling: Telling, tmp_path: Path
) -> None:
    journal = new_journal("v100:1x4", policy="las", seed=0, epoch=1.79e9)
    tell = telling(journal)
    two = Placement(((0, 2),))
    tell(0.0, [JobSubmitted(0.0, new_spec("a", 0.0, 2, 10.0))], [Start(0, 1, two)])
    tell(4.0, [JobStarted(0.0, 0, 1, 1.0, 0.0), JobCrashed(4.0, 0, 1, 0.0, True, "", False)], [Start(0, 2, two)])
    tell(14.0, [JobStarted(4.0, 0, 2, 1.0, 0.0), JobCompleted(14.0, 0, 2, 10.0)], [])
    saved(journal, tmp_path, "las")
    (place,) = data_of(page(find_runs([tmp_path])))
    assert "ρ" not in place["note"]
    assert place["jct"]["las"]["x"] == [14]
    run = place["runs"]["las"]
    assert run["crashed"] == {"0": [4000]}
    assert run["jobs"]["rho"] == [None]


def test_reasons_are_derived_of_small_runs_only(
    three_jobs: MemoryJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(three_jobs, tmp_path, "by-hand")
    runs = find_runs([tmp_path])
    told = [WaitingReason(0.0, 1, 3, "waits: 2 free, needs 4"), WaitingReason(10.0, 1, 4, "runs: it fits")]

    def reasons() -> Any:
        return data_of(page(runs, None, lambda path: told))[0]["runs"]["by-hand"]["reasons"]

    assert reasons() == {
        "job": [1, 1], "at": [0, 10_000], "text": [0, 1], "texts": ["waits: 2 free, needs 4", "runs: it fits"],
    }  # fmt: skip
    monkeypatch.setattr(run_page, "_MOST_REPLAYED", 2)
    assert reasons()["texts"] == []
    assert MOST_BYTES == 1_000_000
