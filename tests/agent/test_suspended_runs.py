"""Suspended runs of a node: who has its devices meanwhile, and what the agent reports; real processes at the end."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.agent.conftest import Site, keeper_of, marked, server_of, until
from tests.agent.conftest import order as order_of

from shoal.agent import devices
from shoal.agent.machine import suspension_ability
from shoal.agent.node_state import Actions, NodeState, Prepare, StartRanks
from shoal.agent.processes import all_processes, descendants, find_process
from shoal.wire.messages import PROTOCOL, AgentOrders, RunOrder, SuspensionReport


def order(job: int = 1, **other: Any) -> RunOrder:
    return order_of("go", ["train"], job=job, **other)


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
            said.append(f"start {action.order.job} on {list(action.devices)}")
        else:
            said.append(f"{type(action).__name__} {action.key[0]}")
    return said


def reported(node: NodeState, job: int = 1) -> SuspensionReport | None:
    return next(run.suspension for run in node.reports() if run.job == job)


def test_a_suspended_run_leaves_its_devices_to_others_once_it_is_suspended() -> None:
    node = NodeState(1)
    follow(node, order(1))
    assert follow(node, order(1, turn=1), order(2)) == ["SuspendRanks 1"]
    assert follow(node, order(1, turn=1), order(2)) == []
    assert words(node, node.turned((1, 1), True, 500, 2.0)) == ["start 2 on [0]"]
    assert reported(node) == SuspensionReport(turn=1, suspended=True, bytes=500, seconds=2.0)


def test_a_run_is_resumed_when_the_devices_are_free_again() -> None:
    node = NodeState(1)
    follow(node, order(1))
    follow(node, order(1, turn=1))
    node.turned((1, 1), True)
    follow(node, order(1, turn=1), order(2))
    assert follow(node, order(1, turn=2), order(2, turn=1)) == ["SuspendRanks 2"]
    assert words(node, node.turned((2, 1), True)) == ["ResumeRanks 1"]
    assert words(node, node.turned((1, 1), False, 0, 0.5)) == []
    assert reported(node) == SuspensionReport(turn=2, suspended=False, seconds=0.5)


def test_a_refused_suspension_keeps_the_devices_and_gives_the_cause() -> None:
    node = NodeState(1)
    follow(node, order(1))
    follow(node, order(1, turn=1), order(2))
    assert words(node, node.turned((1, 1), False, cause="the driver refuses")) == []
    assert reported(node) == SuspensionReport(turn=1, suspended=False, cause="the driver refuses")
    assert follow(node, order(1, turn=1), order(2)) == []  # one order is tried once
    assert follow(node, order(1, turn=3), order(2)) == ["SuspendRanks 1"]


def test_an_order_that_changes_meanwhile_is_followed_afterwards() -> None:
    node = NodeState(1)
    follow(node, order(1))
    follow(node, order(1, turn=1))
    assert follow(node, order(1, turn=2)) == []
    assert words(node, node.turned((1, 1), True)) == ["ResumeRanks 1"]


def test_a_run_on_real_gpus_is_resumed_on_the_same_ones_or_reports_which_run_has_them() -> None:
    node = NodeState(2, real=True)
    follow(node, order(1), order(2))
    follow(node, order(1, turn=1), order(2))
    node.turned((1, 1), True)
    assert follow(node, order(1, turn=1), order(2), order(3)) == ["start 3 on [0]"]
    assert follow(node, order(1, turn=2), order(3)) == ["StopRanks 2"]
    found = reported(node)
    assert found is not None
    assert found.suspended
    assert "its GPUs are in use by job job-3" in found.cause


def test_two_runs_on_a_real_gpu_change_places_by_one_set_of_orders() -> None:
    node = NodeState(1, real=True)
    follow(node, order(1))
    follow(node, order(1, turn=1), order(2))
    words(node, node.turned((1, 1), True))
    assert follow(node, order(1, turn=2), order(2, turn=1)) == ["SuspendRanks 2"]
    assert words(node, node.turned((2, 1), True)) == ["ResumeRanks 1"]
    assert reported(node) == SuspensionReport(turn=1, suspended=True)


def test_slots_without_gpus_are_interchangeable() -> None:
    node = NodeState(2)
    follow(node, order(1), order(2))
    follow(node, order(1, turn=1), order(2))
    node.turned((1, 1), True)
    follow(node, order(1, turn=1), order(2), order(3))
    assert follow(node, order(1, turn=2), order(3)) == ["StopRanks 2"]
    assert words(node, node.over((2, 1))) == ["Forget 2", "ResumeRanks 1"]


def test_new_runs_take_the_devices_of_suspended_ones_last() -> None:
    node = NodeState(2, real=True)
    follow(node, order(1))
    follow(node, order(1, turn=1))
    node.turned((1, 1), True)
    assert follow(node, order(1, turn=1), order(2)) == ["start 2 on [1]"]


def test_the_ability_of_a_node_follows_from_its_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    none = str(tmp_path / "none.so")
    found = suspension_ability(none, none)
    assert (found.how, found.why_not, found.most_gpus) == ("signals", "", None)
    assert found.memory > 0
    monkeypatch.setattr(devices, "reported", lambda load: ["NVIDIA H200"])
    found = suspension_ability(none, none)
    assert (found.how, found.most_gpus) == ("cuda checkpoint", 1)
    assert "cannot be loaded" in found.why_not


# ── real processes ────────────────────────────────────────────────────────────────────────────────────────────────

COUNT = "i=0; while :; do i=$((i+1)); echo $i > $SHOAL_DIR/count; sleep 0.01; done"


def counting(site: Site, job: int = 1, **other: Any) -> RunOrder:
    return order_of("go", ["sh", "-c", COUNT], job=job, env={"MARK": site.mark}, **other)


def turned(site: Site, turn: int) -> SuspensionReport:
    def there() -> SuspensionReport | None:
        run = site.plane.run()
        return run.suspension if run and run.suspension and run.suspension.turn == turn else None

    report: SuspensionReport = until(there, f"turn {turn} is reported")
    return report


def count(site: Site, job: int = 1) -> int:
    path = next(site.home.glob(f"**/job-{job}/count"), None)
    return int(path.read_text() or 0) if path is not None else 0


def test_two_runs_take_turns_on_one_device(site: Site) -> None:
    site.agent(gpus=1)
    site.plane.want(counting(site))
    until(lambda: count(site) > 0, "job 1 counts")
    site.plane.want(counting(site, turn=1), counting(site, 2))
    assert turned(site, 1).suspended
    assert turned(site, 1).bytes > 0
    until(lambda: count(site, 2) > 0, "job 2 counts")
    before = count(site)
    time.sleep(0.05)
    assert count(site) == before
    site.plane.want(counting(site, turn=2))
    assert not turned(site, 2).suspended
    until(lambda: count(site) > before, "job 1 counts on from where it was")
    assert site.plane.hellos[0].suspension is not None


def test_no_process_stays_frozen_when_agent_and_keeper_server_are_killed(site: Site) -> None:
    agent = site.agent(gpus=1)
    site.plane.want(counting(site))
    until(lambda: count(site) > 0, "it counts")
    site.plane.want(counting(site, turn=1))
    assert turned(site, 1).suspended
    keeper, server = keeper_of(site), server_of(site)
    below = [process.pid for process in descendants([keeper], all_processes())]
    for pid in (agent.pid, server, keeper):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not any((p := find_process(pid)) and p.state not in "ZX" for pid in below), "all have ended")
    site.gone()


@pytest.mark.parametrize("how", [signal.SIGHUP, signal.SIGKILL], ids=["restarted", "killed"])
def test_the_next_agent_takes_a_suspended_run_over_and_resumes_it(site: Site, how: int) -> None:
    agent = site.agent(gpus=1)
    site.plane.want(counting(site))
    until(lambda: count(site) > 0, "it counts")
    site.plane.want(counting(site, turn=1))
    assert turned(site, 1).suspended
    (rank,) = [pid for pid, found in marked(site.mark).items() if found.get("SHOAL_RANK") == "0" and is_main(pid)]
    before = count(site)
    os.kill(agent.pid, how)
    agent.wait(10)
    site.agent(gpus=1)
    until(lambda: len(site.plane.hellos) > 1, "the next agent is there")
    assert site.plane.hellos[-1].kept == [(1, 1)]
    until(lambda: (run := site.plane.run()) and run.suspension and run.suspension.suspended, "it is still suspended")
    assert count(site) == before
    site.plane.want(counting(site, turn=2))
    assert not turned(site, 2).suspended
    until(lambda: count(site) > before, "it counts on from where it was")
    assert find_process(rank) is not None
    server = server_of(site)
    site.plane.want()
    site.gone()
    until(lambda: (found := find_process(server)) is None or found.state == "Z", "the first agent's server has ended")


def is_main(pid: int) -> bool:
    found = find_process(pid)
    return found is not None and found.group == pid


def test_a_suspended_run_that_no_agent_takes_over_ends_with_its_lease(site: Site) -> None:
    site.plane.lease = 2.0
    agent = site.agent(gpus=1)
    site.plane.want(counting(site))
    until(lambda: count(site) > 0, "it counts")
    site.plane.want(counting(site, turn=1))
    assert turned(site, 1).suspended
    agent.send_signal(signal.SIGHUP)
    agent.wait(10)
    assert marked(site.mark)
    site.gone()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_agent_that_is_stopped_ends_suspended_runs_too(site: Site, number: int) -> None:
    agent = site.agent(gpus=1)
    site.plane.want(counting(site))
    until(lambda: count(site) > 0, "it counts")
    site.plane.want(counting(site, turn=1))
    assert turned(site, 1).suspended
    agent.send_signal(number)
    agent.wait(10)
    assert not marked(site.mark)
