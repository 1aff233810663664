"""``import shoal``: its names, what importing it costs, and ``shoal.simulate``."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import shoal
from shoal.scenario.replay import replay_file
from shoal.store.journal import JournalFile, MemoryJournal

JOBS = [shoal.Job(id=f"job-{i}", submitted=1200.0 * i, gpus=1 + i % 2, work=600.0) for i in range(6)]


@dataclass(frozen=True)
class FirstFit:
    """Grants what fits, in order of admission."""

    reserve: int = 0

    def decide(self, snapshot: shoal.Snapshot) -> shoal.Decision:
        free, verdicts = snapshot.cluster.total_gpus - self.reserve, {}
        for job in snapshot.jobs.values():
            fits = job.gpus <= free
            free -= job.gpus if fits else 0
            verdicts[job.id] = shoal.Grant(job.gpus) if fits else shoal.Refusal(shoal.in_words("waits: full"))
        return shoal.Decision(verdicts)


def test_every_public_name_is_there_and_documented() -> None:
    assert set(shoal.__all__) <= set(dir(shoal))
    for name in shoal.__all__:
        value = getattr(shoal, name)
        assert name == "__version__" or (value.__doc__ or "").strip(), name
    assert 15 <= len(shoal.__all__) <= 20


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'shoal' has no attribute 'simulat'"):
        shoal.simulat  # type: ignore[attr-defined]  # noqa: B018


def test_importing_shoal_imports_nothing_heavy() -> None:
    code = "import sys; before = set(sys.modules); import shoal; print(*sorted(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in loaded if name.startswith("shoal")] == ["shoal"]
    assert not {"numpy", "scipy", "msgspec", "click", "pyarrow", "importlib.metadata"} & set(loaded)


def test_a_simulation_does_not_import_scipy_unless_it_needs_it() -> None:
    code = "import sys, shoal; shoal.simulate('fifo', 'demo', 'v100:1x4', jobs=2); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "shoal.scenario.simulation" in loaded
    assert "scipy" not in loaded


@pytest.mark.parametrize(
    ("policy", "workload", "cluster"),
    [
        ("fifo", JOBS, "gpu:1x4"),
        (shoal.parse_policy("fifo"), shoal.Workload("mine", tuple(JOBS)), shoal.parse_cluster("gpu:1x4")),
        (FirstFit(), iter(JOBS), "gpu:1x4"),
        (FirstFit, JOBS, "gpu:1x4"),
    ],
    ids=["names", "objects", "own policy", "own class"],
)
def test_simulate_takes_names_and_objects(
    policy: "str | shoal.Policy | type[shoal.Policy]", workload: "shoal.Workload | list[shoal.Job]", cluster: str
) -> None:
    result = shoal.simulate(policy=policy, workload=workload, cluster=cluster)
    assert (result.summary["completed"], len(result.jobs)) == (6, 6)
    assert [row["id"] for row in result.jobs.rows()] == result.jobs.id == [job.id for job in JOBS]
    assert result.jobs.jct.tolist() == [600.0] * 6
    assert isinstance(result.journal, MemoryJournal)
    assert len(list(result.journal.read())) > 6


def test_simulate_reads_files_and_generators_and_keeps_the_journal(tmp_path: Path) -> None:
    (tmp_path / "w.csv").write_text("job_id,submit,duration,num_gpu\na,0,100,1\nb,0,100,1\n")
    result = shoal.simulate("fifo", tmp_path / "w.csv", "gpu:1x1", journal=tmp_path / "j.sqlite", jobs=1)
    assert (result.summary["workload"], result.summary["makespan"]) == ("w", 100.0)
    assert isinstance(result.journal, JournalFile)
    assert replay_file(tmp_path / "j.sqlite")[0].decisions == result.summary["decisions"]
    demo = shoal.simulate("las", "demo", "v100:1x4", jobs=8, seed=2, knowledge="oracle")
    assert (demo.summary["jobs"], demo.summary["seed"], demo.summary["knowledge"]) == (8, 2, "oracle")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"sed": 1}, "setting: 'sed': unknown; did you mean seed"),
        ({"seed": "one"}, "settings: {'seed': 'one'}"),
        ({"policy": "fifoo"}, "policy: 'fifoo': unknown; did you mean fifo"),
        ({"policy": object()}, "must be a specification or an object with a method decide"),
        ({"policy": FirstFit(), "round": 60.0}, "round: 60.0: applies to policies given by name"),
        ({"workload": "demos"}, "no such file, and as a generator unknown; did you mean demo"),
        ({"workload": ["a"]}, "workload: 'a': must be a file, a generator's name, a Workload or jobs"),
        ({"cluster": "v100"}, "cluster"),
    ],
)
def test_bad_input_is_one_clear_line(arguments: dict[str, object], says: str) -> None:
    given: dict[str, object] = {"policy": "fifo", "workload": JOBS, "cluster": "gpu:1x4", **arguments}
    with pytest.raises(shoal.InputError) as caught:
        shoal.simulate(**given)  # type: ignore[arg-type]
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
