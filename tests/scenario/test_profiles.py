"""``--profiles``: the public simulator's setting, beside what its authors publish, and what a policy is told there."""

import json
from pathlib import Path

import pytest

from shoal.core.errors import InputError
from shoal.core.topology import parse_cluster
from shoal.policy.registry import POLICIES, knowledge_of
from shoal.scenario.backend import check
from shoal.scenario.replay import replay_file
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import run
from shoal.scenario.sweep import SweepTask
from shoal.scenario.workload_source import WorkloadSource
from shoal.workload.files import read_workload
from shoal.workload.schema import Job, Workload

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "pollux"


@pytest.fixture
def public() -> Path:
    """The folder of Pollux's public files; tests that need it skip where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("the public files are not here")
    return SHARED


def setting(public: Path, policy: str) -> Scenario:
    return Scenario(parse_cluster("t4:16x4"), policy, profiles=(str(public / "traces"),))


GOLDENS = [("tiresias:thresholds=57600", "tiresias", w) for w in (1, 2, 3, 4)] + [("optimus:interval=60", "optimus", 3)]


@pytest.mark.parametrize(("policy", "theirs", "number"), GOLDENS)
def test_tuned_jobs_fare_as_in_the_public_simulator(public: Path, policy: str, theirs: str, number: int) -> None:
    """Reference: the authors' own per-job results (reference-metrics.json). Theirs decides once a minute and charges
    30 s for a job's first start too, so that each of its jobs takes one to two minutes longer.
    """
    workload = read_workload(public / "workloads" / f"workload-{number}.csv")
    summary = run(setting(public, policy), workload).summary
    reference = json.loads((public / "reference-metrics.json").read_text())["metrics"]
    published = reference[f"{theirs}/1.0x/workload-{number}"]
    assert (summary["completed"], summary["knowledge"]) == (160, "profiled")
    assert summary["avg_jct"] == pytest.approx(published["avg_jct"], rel=0.07)
    assert published["avg_jct"] - 300.0 < summary["avg_jct"] < published["avg_jct"]
    assert summary["makespan"] == pytest.approx(published["makespan"], rel=0.03)


def test_agents_report_online_and_the_run_is_derived_again_from_its_journal(public: Path, tmp_path: Path) -> None:
    workload = read_workload(public / "workloads" / "workload-1.csv").first(4)
    outcome = run(setting(public, "pollux"), workload, journal_path=tmp_path / "j.sqlite")
    assert (outcome.summary["completed"], outcome.summary["knowledge"]) == (4, "online")
    derived, journal, settings = replay_file(tmp_path / "j.sqlite")
    assert (journal.cut, settings["profiles"]) == (None, [str(public / "traces")])
    assert derived.decisions == outcome.summary["decisions"]


def test_a_model_without_a_folder_is_refused(public: Path) -> None:
    stranger = Workload("w", (Job(id="a", submitted=0.0, gpus=1, work=1.0, model="ResNet-18"),))
    with pytest.raises(InputError, match="has no folder ResNet-18, a model of this workload"):
        check(Scenario(parse_cluster("v100:1x4"), "fifo", profiles=(str(public / "traces"),)), stranger)


def test_every_policy_has_its_default_knowledge_unless_an_option_sets_another() -> None:
    assert {name for name in POLICIES if knowledge_of(name, adapting=False) == "online"} == {"pollux"}
    assert {name for name in POLICIES if knowledge_of(name, adapting=True) == "online"} == {"pollux", "rank", "shoal"}
    assert knowledge_of("pollux:p=1", adapting=True) == "online"
    assert knowledge_of("mine.py:Mine", adapting=True) == "profiled"
    adaptive = Job(id="a", submitted=0.0, gpus=1, work=1.0, model="cifar10", limits=(128, 4096, 32, 4096))
    rank = Scenario(parse_cluster("t4:1x4"), "rank")
    assert (rank.effective_knowledge, rank.resolved([adaptive]).effective_knowledge) == ("profiled", "online")
    assert Scenario(rank.cluster, "rank", knowledge="oracle").resolved([adaptive]).effective_knowledge == "oracle"


def test_a_kept_run_is_not_taken_for_one_with_other_profiles_or_knowledge(tmp_path: Path) -> None:
    (tmp_path / "bert").mkdir()
    table = tmp_path / "bert" / "placements.csv"
    table.write_text("placement\n")
    base = Scenario(parse_cluster("t4:1x4"), "rank", profiles=(str(tmp_path),))
    said = Scenario(base.cluster, "rank", profiles=base.profiles, knowledge="profiled")
    first, other = (SweepTask(scenario, WorkloadSource("demo"), None).fingerprint() for scenario in (base, said))
    table.write_text("placement,local_bsz\n")
    assert len({first, other, SweepTask(base, WorkloadSource("demo"), None).fingerprint()}) == 3
