"""Earlier runs from which lengths are predicted: traces and journals given to a simulation or a live cluster."""

from dataclasses import replace
from pathlib import Path

import pytest

from shoal.core.decision import Decision
from shoal.core.errors import InputError
from shoal.core.snapshot import Snapshot
from shoal.core.topology import parse_cluster
from shoal.live.home import JOURNAL, Settings, open_control_plane
from shoal.policy.classic.fifo import Fifo
from shoal.scenario.replay import replay_file
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import run
from shoal.store.journal import JournalFile
from shoal.testing.builders import job
from shoal.workload.files import write_workload
from shoal.workload.schema import Workload

SACCT = "JobID|JobName|User|Account|State|Submit|ElapsedRaw|AllocTRES\n" + "".join(
    f"{i}|train-{i}|ana|vision|COMPLETED|2024-01-01T00:{i:02d}:00|7200|gres/gpu=1\n" for i in range(20)
)
CLUSTER = parse_cluster("gpu:1x4")


class Watching(Fifo):
    """A policy that keeps the median predicted work of the first job it sees."""

    seen: list[float] = []  # noqa: RUF012

    def decide(self, snapshot: Snapshot) -> Decision:
        self.seen.extend(snapshot.predicted_left.median.tolist())
        return super().decide(snapshot)


def first_prediction(history: Path | None, tmp_path: Path) -> float:
    Watching.seen.clear()
    (tmp_path / "out.sqlite").unlink(missing_ok=True)
    row = job("train-99", seconds=50.0, tenant="ana", name="train-99", declares_work=False)
    scenario = Scenario(CLUSTER, "fifo", history=None if history is None else str(history))
    run(scenario, Workload("w", (row,)), policy=Watching(), journal_path=tmp_path / "out.sqlite")
    return Watching.seen[0]


def test_a_simulation_predicts_from_an_sacct_history(tmp_path: Path) -> None:
    (tmp_path / "sacct.txt").write_text(SACCT)
    assert first_prediction(tmp_path / "sacct.txt", tmp_path) == pytest.approx(7200, rel=0.1)
    replayed, _, settings = replay_file(tmp_path / "out.sqlite")
    assert replayed.decisions
    assert settings["history"] == str(tmp_path / "sacct.txt")


def test_a_simulation_predicts_from_the_journal_of_another(tmp_path: Path) -> None:
    rows = tuple(job(f"a{i}", seconds=900.0, tenant="ana", name="train-1") for i in range(20))
    run(Scenario(CLUSTER, "fifo"), Workload("w", rows), journal_path=tmp_path / "journal.sqlite")
    assert first_prediction(tmp_path / "journal.sqlite", tmp_path) == pytest.approx(900, rel=0.1)
    assert first_prediction(tmp_path, tmp_path) == pytest.approx(900, rel=0.1)


def test_a_simulation_predicts_from_a_workload_file(tmp_path: Path) -> None:
    rows = tuple(job(f"a{i}", seconds=500.0, tenant="vision", user="ana", name="train") for i in range(20))
    write_workload(Workload("w", rows), tmp_path / "w.jsonl")
    assert first_prediction(tmp_path / "w.jsonl", tmp_path) == pytest.approx(500, rel=0.5)


@pytest.mark.parametrize("text", [None, "", "no trace at all\n", "SQLite format 3\0 but damaged"])
def test_a_file_without_runs_is_refused(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "history.txt").write_text(text)
    with pytest.raises(InputError, match=r"history|workload|format"):
        first_prediction(tmp_path / "history.txt", tmp_path)


def test_a_live_cluster_imports_a_history_once(tmp_path: Path) -> None:
    (tmp_path / "sacct.txt").write_text(SACCT)
    settings = Settings(tmp_path / "home", Scenario(CLUSTER, "fifo"), history=tmp_path / "sacct.txt")
    for given in (settings, settings, replace(settings, history=None)):
        with open_control_plane(given) as plane:
            plane.backend.drain("gpu-0", "so that the loop runs a cycle", "op").result(20)
            assert len(plane.scheduler.state.lengths.sources) == 1
            keys = {key: count for key, count, _ in plane.scheduler.state.lengths.image().keys}
            assert keys["all",] == 20
    events = [e for r in JournalFile(tmp_path / "home" / JOURNAL).raw() if r[0] == 1 for e in r[2]]
    assert sum(event[2] == plane.scheduler.state.lengths.sources[0] for event in events) == 1
    replay_file(tmp_path / "home")
