"""One list of settings: the header, the summary and the comparison of runs all read the fields of ``Scenario``."""

from dataclasses import dataclass, fields, replace
from pathlib import Path

import pytest

from shoal.core.topology import parse_cluster
from shoal.report.compare import compare
from shoal.report.files import StoredRun
from shoal.scenario.replay import replay_file
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import run
from shoal.store.journal import MemoryJournal
from shoal.workload.generators.registry import generate

CLUSTER = parse_cluster("v100:1x4")


@dataclass(frozen=True, slots=True)
class _Extended(Scenario):
    colour: str = "blue"


def test_a_new_field_is_in_the_header_the_summary_and_the_comparison() -> None:
    outcomes = [run(_Extended(CLUSTER, "fifo", colour=colour), generate("demo", jobs=5)) for colour in ("blue", "red")]
    runs = []
    for colour, outcome in zip(("blue", "red"), outcomes, strict=True):
        assert isinstance(outcome.journal, MemoryJournal)
        assert next(outcome.journal.raw())[2]["colour"] == colour
        assert outcome.summary["settings"]["colour"] == colour
        runs.append(StoredRun(Path(colour), outcome.summary, outcome.jobs, None))
    (comparison,) = compare(runs)
    assert [s.policy for s in comparison.standings] == ["fifo (colour blue)", "fifo (colour red)"]


def test_every_setting_is_in_the_summary() -> None:
    summary = run(Scenario(CLUSTER, "fifo"), generate("demo", jobs=5)).summary
    names = {f.metadata.get("key", f.name) for f in fields(Scenario)}
    assert names <= {*summary, *summary["settings"]}


def test_the_scenario_of_a_header_is_the_one_that_wrote_it() -> None:
    scenario = Scenario(CLUSTER, "las", seed=3, knowledge="oracle", profiles=("a", "b"), tolerate_policy_errors=True)
    assert Scenario.of_settings(scenario.settings("w")) == scenario


@pytest.mark.parametrize("key", ["measurement_noise", "cloud", "steadfast", "profiles"])
def test_a_header_without_a_later_key_is_read_with_its_default(key: str) -> None:
    scenario = Scenario(CLUSTER, "las", seed=3, knowledge="oracle")
    header = {name: value for name, value in scenario.settings("w").items() if name != key}
    assert Scenario.of_settings(header) == scenario


def test_a_journal_of_a_run_with_errors_tolerated_keeps_the_key_of_earlier_versions(tmp_path: Path) -> None:
    scenario = replace(Scenario(CLUSTER, "las"), tolerate_policy_errors=True)
    run(scenario, generate("demo", jobs=5), journal_path=tmp_path / "j.sqlite")
    assert replay_file(tmp_path / "j.sqlite")[2]["steadfast"] is True
