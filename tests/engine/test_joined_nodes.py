"""Nodes that join a running cluster, and nodes that leave it for good, in the state, its images and replay."""

import zlib
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.commands import Start
from shoal.core.errors import InputError, JournalError
from shoal.core.events import (
    EventBatch,
    JobCrashed,
    JobStarted,
    JobSubmitted,
    NodeJoined,
    NodeLost,
    NodeRemoved,
    NodeReturned,
)
from shoal.core.topology import Node, Placement, parse_cluster
from shoal.engine.replay import fold
from shoal.engine.state import State
from shoal.engine.state_image import decode_image, encode_image, image_of, restore, same_image
from shoal.perf.catalog import catalog
from shoal.perf.model import OnlineModel, ProfiledModel
from shoal.policy.classic.las import Las
from shoal.report.history import read_history
from shoal.report.metrics import job_table, summarize
from shoal.scenario.python_api import simulate as shoal_simulate
from shoal.scenario.replay import replay_file
from shoal.scenario.scenario import Scenario
from shoal.scenario.specs import read_faults
from shoal.sim.faults import Faults, NodeJoin
from shoal.store.journal import MemoryJournal
from shoal.testing import strategies
from shoal.testing.builders import job, simulate


def state_on(cluster: str) -> State:
    topology = parse_cluster(cluster)
    return State(topology, ProfiledModel(topology, catalog()))


def joined(node: int, name: str, kind: str = "gpu", gpus: int = 4) -> tuple[NodeJoined, NodeReturned]:
    return NodeJoined(1.0, node, name, kind, gpus), NodeReturned(1.0, node)


def test_a_node_that_joined_is_down_until_it_returns() -> None:
    state = state_on("gpu:1x2")
    joins, returns = joined(1, "new")
    state.apply_events(1.0, [joins])
    down = state.freeze()
    assert (down.cluster.capacity, down.cluster.installed, down.free_gpus.free) == ((2,), (6,), (2,))
    state.apply_events(1.0, [returns])
    up = state.freeze()
    assert (up.cluster.capacity, up.free_gpus.free, up.free_gpus.largest_block(0)) == ((6,), (6,), 4)
    assert down.free_gpus.free == (2,)


def test_a_job_too_wide_for_the_cluster_can_run_once_a_node_has_joined() -> None:
    state = state_on("gpu:1x2")
    state.apply_events(0.0, [JobSubmitted(0.0, job("wide", 0, 5).spec())])
    before = state.freeze()
    state.apply_events(1.0, [*joined(1, "new"), *joined(2, "fast", "v100", 8)])
    assert before.columns.speeds.tolist() == [[0.0]]
    assert state.freeze().columns.speeds.tolist() == [[1.0, 1.0]]
    assert state.freeze().cluster.kinds == ("gpu", "v100")


def test_a_kind_that_a_job_keeps_crashing_on_stays_excluded_when_a_node_joins() -> None:
    state = state_on("gpu:1x2,v100:1x2")
    state.apply_events(0.0, [JobSubmitted(0.0, job("a", 0, 1).spec())])
    for incarnation in (1, 2):
        state.apply_commands([Start(0, incarnation, Placement(((0, 1),)))])
        crash = JobCrashed(1.0, 0, incarnation, 0.0, True, "it fails", failed=False)
        state.apply_events(1.0, [JobStarted(1.0, 0, incarnation, 1.0, 0.0), crash])
    assert state.freeze().columns.speeds.tolist() == [[0.0, 1.0]]
    state.apply_events(1.0, joined(2, "new"))
    assert state.freeze().columns.speeds.tolist() == [[0.0, 1.0]]


def test_a_removed_node_is_not_installed_and_may_join_again() -> None:
    state = state_on("gpu:2x4")
    state.apply_events(0.0, [JobSubmitted(0.0, job("wide", 0, 8).spec()), NodeLost(1.0, 1)])
    assert state.freeze().columns.speeds.tolist() == [[1.0]]
    state.apply_events(2.0, [NodeRemoved(2.0, 1)])
    gone = state.freeze()
    assert (gone.cluster.installed, gone.cluster.describe(), gone.columns.speeds.tolist()) == ((4,), "gpu:1x4", [[0.0]])
    state.apply_events(3.0, joined(1, "gpu-1"))
    assert state.freeze().cluster.capacity == (8,)
    assert state.freeze().columns.speeds.tolist() == [[1.0]]


@pytest.mark.parametrize(
    "event",
    [
        NodeJoined(1.0, 2, "new", "gpu", 4),
        NodeJoined(1.0, 1, "gpu-0", "gpu", 2),
        NodeJoined(1.0, 0, "gpu-0", "gpu", 4),
        NodeJoined(1.0, 0, "gpu-0", "v100", 2),
    ],
)
def test_a_node_that_cannot_have_joined_is_refused(event: NodeJoined) -> None:
    with pytest.raises(JournalError, match="cannot be node"):
        state_on("gpu:1x2").apply_events(1.0, [event])


def test_the_policy_starts_without_carry_when_a_node_joins() -> None:
    state = state_on("gpu:1x2")
    state.carry = "rows for each kind"
    state.apply_events(1.0, joined(1, "new"))
    assert state.carry is None


@settings(max_examples=40)
@given(st.data())
def test_an_image_restores_a_cluster_that_nodes_joined(data: st.DataObject) -> None:
    cluster, rows = data.draw(strategies.worlds(most_jobs=5))
    faults = data.draw(strategies.faults(cluster, rows))
    until = data.draw(st.sampled_from([100.0, 700.0, 5000.0]))
    run = simulate(Las(quantum=60.0), rows, cluster, faults=faults, until=until)
    image = decode_image(encode_image(image_of(run.state)))
    fresh = State(cluster, ProfiledModel(cluster, catalog()))
    restore(fresh, image)
    assert image_of(fresh) == image
    later = faults.grown(cluster)  # as after a restart, whose header names every node
    refolded = fold(run.journal.read(), State(later, ProfiledModel(later, catalog())))
    known = {join.node.name for join in faults.joins} - set(run.state.topology.node_index)
    if not known:
        assert refolded.free_gpus == run.state.free_gpus
        assert refolded.topology == run.state.topology
        assert np.array_equal(refolded.freeze().columns.speeds, run.state.freeze().columns.speeds)


def test_models_of_speed_follow_the_cluster() -> None:
    small, large = parse_cluster("gpu:1x2"), parse_cluster("gpu:2x2")
    spec = job("wide", 0, 4).spec()
    for model in (ProfiledModel(small, catalog()), OnlineModel(small)):
        assert model.speeds(spec).tolist() == [0.0]
        assert model.on(large).speeds(spec).tolist() == [1.0]


SCRIPT = """
script:
  - {at: 50, join: late, type: v100, gpus: 4, rack: r9}
  - {at: 20, join: other, type: k80, gpus: 2}
  - {at: 70, lose: late, down_for: 30}
"""


def test_nodes_that_join_are_simulated_and_their_journal_replays(tmp_path: Path) -> None:
    (tmp_path / "faults.yaml").write_text(SCRIPT)
    rows = [job(f"j{i}", 0, 2, 100) for i in range(6)]
    path = tmp_path / "journal.sqlite"
    done = shoal_simulate("las", rows, "v100:1x2", faults=str(tmp_path / "faults.yaml"), journal=path)
    replayed, journal, _ = replay_file(path)
    assert replayed.decisions == done.summary["decisions"]
    assert done.summary["completed"] == 6
    events = [event for record in journal.read() if isinstance(record, EventBatch) for event in record.events]
    assert [event.name for event in events if isinstance(event, NodeJoined)] == ["other", "late"]


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("{at: 1, join: v100-0, type: v100, gpus: 4}", "a node of this name is there already"),
        ("{at: 1, join: x, type: v100, gpus: 0}", "must be a whole number of at least 1"),
        ("{at: 1, join: x, gpus: 1}", "must be a GPU type"),
        ("{at: -1, join: x, type: v100, gpus: 1}", "must be a finite number above 0"),
        ("{at: 1, join: x, type: v100, gpus: 1, racks: 2}", "did you mean rack"),
    ],
)
def test_a_wrong_entry_of_a_node_that_joins_is_one_clear_line(tmp_path: Path, entry: str, says: str) -> None:
    (tmp_path / "f.yaml").write_text(f"script:\n  - {entry}\n")
    with pytest.raises(InputError, match=says):
        read_faults(str(tmp_path / "f.yaml"), parse_cluster("v100:1x2"), {})


def test_gpus_count_as_installed_from_the_time_their_node_joins() -> None:
    later = Faults(script=[NodeJoin(50.0, Node("b", "gpu", 4))])
    scenario = Scenario(parse_cluster("gpu:1x4"), "las")
    run = simulate(Las(), [job("a", 0, 4, 100)], "gpu:1x4", faults=later)
    records = [*MemoryJournal.begin(scenario.settings("w")).raw(), *list(run.journal.raw())[1:]]
    history = read_history(records)
    assert sum(history.topology.installed) == 8
    assert summarize(history, job_table(history))["utilization"] == pytest.approx(400 / 600)


def test_the_base_of_an_older_version_equals_the_state_before_it() -> None:
    image = image_of(state_on("gpu:1x2"))
    fields = msgspec.to_builtins(image)
    older = encode_image(image)[:1] + zlib.compress(
        msgspec.msgpack.encode({name: value for name, value in fields.items() if name not in ("joined", "removed")})
    )
    assert older != encode_image(image)
    assert same_image(older, encode_image(image))
    assert not same_image(older, encode_image(replace(image, now=1.0)))
