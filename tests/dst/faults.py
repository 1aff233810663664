"""How each kind of fault of a plan strikes, and how it ends."""

import signal
from functools import partial
from typing import Any

from tests.dst.plan import Fault

from shoal.engine.guard import TooSlow

STEPS = ("ended jobs stored", "written", "closed", "linked", "replaced")
"""Steps of the switch to the next segment of a journal."""


def strike(trial: Any, fault: Fault) -> bool:
    """Begin a fault and schedule its end; return whether there was anything to strike."""
    group, _, what = fault.kind.partition(".")
    return bool(_STRIKES[group](trial, fault, what))


def _plane(trial: Any, fault: Fault, what: str) -> bool:
    plane, world = trial.plane, trial.world
    if what == "clock":
        plane.clocks.jump = (-1) ** fault.which * (fault.which % 97) ** 4  # up to almost three years
        world.after(fault.lasts, setattr, plane.clocks, "jump", 0.0)
        return True
    if not plane.alive or (what == "pause" and plane.paused):
        return False
    if what == "kill":
        plane.kill()
        world.after(fault.lasts, plane.revive)
    elif what == "commit":
        trial.disk.crash = ("before", "after", "torn")[fault.which % 3]
    elif what == "switch":
        plane.crash_at = STEPS[fault.which % len(STEPS)]
    elif what == "term":
        plane.terminate()
        world.after(fault.lasts, plane.revive)
    else:
        plane.pause()
        world.after(fault.lasts, plane.resume)
    return True


def _policy(trial: Any, fault: Fault, what: str) -> bool:
    """Make one live job poisonous for the policy."""
    plane = trial.plane
    if plane.poison is not None or plane.control_plane is None or not plane.control_plane.accounts.live:
        return False
    live = [account.spec.id for account in plane.control_plane.accounts.live.values()]
    plane.poison = live[fault.which % len(live)], TooSlow if what == "slow" else ZeroDivisionError
    trial.world.after(fault.lasts, setattr, plane, "poison", None)
    return True


def _disk(trial: Any, fault: Fault, what: str) -> bool:
    disk = trial.disk
    if what == "sync":
        disk.sync_fails += 1
        trial.world.after(fault.lasts, lambda: setattr(disk, "sync_fails", max(0, disk.sync_fails - 1)))
        return True
    if disk.problem is not None:
        return False
    disk.problem = what
    trial.world.after(fault.lasts, setattr, disk, "problem", None)
    return True


def _agent(trial: Any, fault: Fault, what: str) -> bool:
    node = _node(trial, fault)
    if what == "twin":
        twin = trial.twin_of(node)
        twin.start()
        trial.world.after(fault.lasts, partial(twin.kill, everything=True))
        return True
    if not node.alive or (what == "pause" and node.paused):
        return False
    if what == "kill":
        node.kill()
    elif what == "term":
        node.terminate()
    else:
        node.pause()
    trial.world.after(fault.lasts, node.resume if what == "pause" else node.revive)
    return True


def _machine(trial: Any, fault: Fault, what: str) -> bool:
    node = _node(trial, fault)
    if not node.alive:
        return False
    node.kill(everything=True)
    trial.world.after(fault.lasts, node.revive)
    return True


def _process(trial: Any, fault: Fault, what: str) -> bool:
    group = fault.kind.partition(".")[0]
    found = [
        process
        for node in trial.nodes
        for process in ([*node.servers.values(), *node.keepers.values()] if group == "keeper" else node.ranks.values())
        if process.status is None
    ]
    if not found:
        return False
    process = found[fault.which % len(found)]
    if what == "kill":
        if group == "rank":
            process.truth.blamed += 1
        process.signal(signal.SIGKILL)
    else:
        process.signal(signal.SIGSTOP)
        trial.world.after(fault.lasts, process.signal, signal.SIGCONT)
    return True


def _node_fault(trial: Any, fault: Fault, what: str) -> bool:
    node = _node(trial, fault)
    if what == "freeze":
        return _freeze(trial, fault, node)
    name = {"disk": "disk_fails", "spawn": "spawn_fails", "slow": "slow_starts"}[what]
    setattr(node, name, getattr(node, name) + 1)
    trial.world.after(fault.lasts, lambda: setattr(node, name, max(0, getattr(node, name) - 1)))
    return True


def _freeze(trial: Any, fault: Fault, node: Any) -> bool:
    """Suspend an agent and all its keepers, but not the ranks."""
    if not node.alive or node.paused:
        return False
    node.pause()
    trial.world.after(fault.lasts, node.resume)
    for keeper in list(node.keepers.values()):
        keeper.signal(signal.SIGSTOP)
        trial.world.after(fault.lasts, keeper.signal, signal.SIGCONT)
    return True


def _net(trial: Any, fault: Fault, what: str) -> bool:
    cable = trial.door if fault.kind.startswith("door") else _node(trial, fault).cable
    cable.strike(what)
    trial.world.after(fault.lasts, cable.mend, what)
    return True


def _node(trial: Any, fault: Fault) -> Any:
    """Return the node that a fault strikes: one with ranks, if there is any."""
    busy = [node for node in trial.nodes if node.ranks] or trial.nodes
    return busy[fault.which % len(busy)]


_STRIKES = {
    "plane": _plane, "policy": _policy, "disk": _disk, "agent": _agent, "machine": _machine, "keeper": _process,
    "rank": _process, "node": _node_fault, "net": _net, "door": _net,
}  # fmt: skip
