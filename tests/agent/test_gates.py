"""The gate: runs that are started before their devices are free, and the runs that go on until they have arrived."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.agent.conftest import Site, until
from tests.agent.conftest import order as order_of

from shoal.agent.gate_files import GateFiles
from shoal.agent.gates import GATE_SECONDS
from shoal.agent.node_run import RunPhase
from shoal.agent.node_state import Actions, NodeState, OpenGate, Prepare, StartRanks
from shoal.agent.workspace import KeeperRecord, Workspace
from shoal.wire.messages import PROTOCOL, AgentOrders, RunOrder


def order(job: int = 1, phase: str = "go", **other: Any) -> RunOrder:
    return order_of(phase, ["train"], job=job, **other)


def leaving(job: int = 1) -> RunOrder:
    return order(job, "stop", yields=True)


def gated(job: int = 2, **other: Any) -> RunOrder:
    return order(job, gate=True, **other)


def follow(node: NodeState, *runs: RunOrder) -> list[str]:
    return words(node, node.follow(AgentOrders(protocol=PROTOCOL, generation=0, lease=10.0, runs=list(runs))))


def words(node: NodeState, actions: Actions) -> list[str]:
    """What is to be done; runs are prepared and started at once."""
    said = []
    for action in actions:
        if isinstance(action, Prepare):
            said += words(node, node.prepared((action.order.job, 1), 7000))
        elif isinstance(action, StartRanks):
            node.started((action.order.job, 1))
            said.append(f"start {action.order.job} on {list(action.devices)}{' at the gate' * action.gated}")
        else:
            said.append(f"{type(action).__name__} {action.key[0]}")
    return said


def phases(node: NodeState) -> dict[int, str]:
    return {run.job: run.phase for run in node.reports()}


def busy(**orders: Any) -> NodeState:
    """A node with one device, on which job 1 runs."""
    node = NodeState(1)
    follow(node, order(1, **orders))
    return node


def test_a_run_goes_on_until_the_next_one_is_at_the_gate_which_opens_when_it_has_left() -> None:
    node = busy()
    assert follow(node, leaving(), gated()) == ["start 2 on [0] at the gate"]
    assert phases(node) == {1: "running", 2: "ready"}
    assert follow(node, leaving(), gated()) == []  # orders are repeated
    assert words(node, node.arrived((2, 1))) == ["StopRanks 1"]
    assert phases(node)[2] == "ready"
    assert words(node, node.over((1, 1))) == ["OpenGate 2"]
    assert phases(node)[2] == "running"


@pytest.mark.parametrize(
    "next_one",
    [
        order(2),
        gated(env={"SHOAL_GATE": "off"}),
        order(2, "prepare", gate=True),
        gated(shared_with=3),
    ],
    ids=["does not wait at the gate", "opted out", "is not to start yet", "shares its devices"],
)
def test_a_run_leaves_at_once_if_the_next_one_cannot_be_held(next_one: RunOrder) -> None:
    node = busy()
    assert follow(node, leaving(), next_one) == ["StopRanks 1"]


def test_a_run_leaves_at_once_if_it_does_not_yield_or_memory_is_short() -> None:
    node = busy()
    assert follow(node, order(1, "stop"), gated()) == ["StopRanks 1", "start 2 on [0] at the gate"]
    node = busy()
    node.gates = False
    assert follow(node, leaving(), gated()) == ["StopRanks 1"]
    node = busy()
    assert follow(node, leaving()) == ["StopRanks 1"]


def test_a_run_at_the_gate_ends_if_its_order_is_withdrawn_and_the_other_leaves_all_the_same() -> None:
    node = busy()
    follow(node, leaving(), gated())
    assert follow(node, leaving()) == ["StopRanks 2"]
    assert words(node, node.over((2, 1))) == ["Forget 2", "StopRanks 1"]


def test_a_run_that_ends_at_the_gate_holds_no_other_back() -> None:
    node = busy()
    follow(node, leaving(), gated())
    node.exited((2, 1), 0, 1)
    assert words(node, node.over((2, 1))) == ["StopRanks 1"]


def test_a_cancelled_run_does_not_wait_for_the_gate() -> None:
    node = busy()
    follow(node, leaving(), gated())
    assert follow(node, order(1, "stop"), gated()) == ["StopRanks 1"]


def test_the_next_run_waits_at_the_gate_while_another_is_suspended() -> None:
    node = busy()
    assert follow(node, order(1, turn=1), gated()) == ["SuspendRanks 1", "start 2 on [0] at the gate"]
    assert words(node, node.turned((1, 1), True)) == ["OpenGate 2"]


def test_two_runs_are_not_promised_the_same_device() -> None:
    node = busy()
    assert follow(node, leaving(), gated(2), gated(3)) == ["start 2 on [0] at the gate"]
    assert node.runs[3, 1].phase is RunPhase.WAITING


def test_two_incarnations_of_a_job_never_run_at_once() -> None:
    node = busy()
    again = order_of("go", ["train"], job=1, incarnation=2, gate=True)
    assert follow(node, leaving(), again) == ["StopRanks 1"]
    assert node.runs[1, 2].phase is RunPhase.WAITING


def test_devices_that_become_free_before_the_start_need_no_gate() -> None:
    node = busy()
    orders = AgentOrders(protocol=PROTOCOL, generation=0, lease=10.0, runs=[order(1, "stop"), gated()])
    node.follow(orders)
    assert not [action for action in node.over((1, 1)) if isinstance(action, OpenGate)]
    assert words(node, node.prepared((2, 1), 7000)) == ["start 2 on [0]"]


def test_a_run_is_awaited_at_the_gate_until_it_arrives_or_is_late(tmp_path: Path) -> None:
    workspace, now = Workspace(tmp_path, "n"), [0.0]
    os.close(workspace.lock())  # makes the folders
    files = GateFiles(workspace, lambda: now[0])
    for job in (1, 2):
        workspace.record((job, 1), KeeperRecord(1, 1, "boot", "machine"))
        files.expect((job, 1))
        assert workspace.gate((job, 1)).exists()
    assert files.due() == []
    workspace.arrival((1, 1)).touch()
    assert files.due() == [(1, 1)]
    now[0] = GATE_SECONDS
    assert files.due() == [(2, 1)]
    assert files.due() == []
    files.open((1, 1))
    assert not workspace.gate((1, 1)).exists()
    files.open((1, 1))


# ── real processes ────────────────────────────────────────────────────────────────────────────────────────────────

LEAVE = "trap 'sleep 0.2; touch $SHOAL_DIR/left; exit 0' TERM; while :; do sleep 0.02; done"
TRAIN = """
import os, sys, time
sys.path[:0] = sys.argv[1].split(":")
from shoal.trainer import Session

def note(name):
    folder = os.environ["SHOAL_DIR"]
    with open(os.path.join(folder, name), "w") as file:
        file.write(str(os.path.exists(os.path.join(folder, "../job-1/left"))))

note("imported")
Session().open()
note("trains")
time.sleep(60)
"""


def test_a_held_process_imports_before_the_other_leaves_and_trains_when_it_has_gone(site: Site) -> None:
    env = {"MARK": site.mark}
    site.agent(gpus=1)
    site.plane.want(order_of("go", ["sh", "-c", LEAVE], env=env))
    until(lambda: (run := site.plane.run()) and run.phase == "running", "job 1 runs")
    train = [sys.executable, "-c", TRAIN, ":".join(entry for entry in sys.path if entry)]
    second = order_of("go", train, job=2, env=env, gate=True)
    site.plane.want(order_of("stop", ["sh", "-c", LEAVE], env=env, grace=5.0, yields=True), second)

    def noted(name: str) -> str:
        text: str = until(
            lambda: next((path.read_text() for path in site.home.glob(f"**/job-2/{name}")), ""), f"job 2 {name}"
        )
        return text

    assert (noted("imported"), noted("trains")) == ("False", "True")
