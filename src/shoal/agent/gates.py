"""The gate: a run whose job waits there is started while its devices are still in use, and held until they are free.

The process loads its program meanwhile; its trainer library stops at the gate before it uses a GPU. A run that is to
leave those devices continues until the next one has arrived there. Pure bookkeeping, as ``node_state``.
"""

from collections.abc import Iterable

from shoal.agent.node_run import NodeRun
from shoal.wire.messages import RunOrder

GATE_SECONDS = 10.0
"""Most seconds for which a run that is to leave continues until the next one has arrived at the gate."""


def promised(runs: Iterable[NodeRun], order: RunOrder, devices: int) -> tuple[int, ...]:
    """Return devices for a run at the gate: free ones and those of leaving runs; empty if these do not suffice.

    Only a run on its own devices, on one node, can be held there.
    """
    if (
        not order.gate
        or order.env.get("SHOAL_GATE") == "off"
        or order.phase != "go"
        or order.shared_with is not None
        or order.roster is not None
    ):
        return ()
    kept: set[int] = set()
    leaving: set[int] = set()
    for run in runs:
        (kept if run.stays or run.roster is not None else leaving).update(run.held)
    found = sorted((device for device in range(devices) if device not in kept), key=leaving.__contains__)[: order.gpus]
    return tuple(found) if len(found) == order.gpus else ()


def goes_on(runs: Iterable[NodeRun], leaver: NodeRun) -> bool:
    """Return whether a run that is to leave continues, because the run that gets its devices is not at the gate yet."""
    devices = {*leaver.held}
    return leaver.order.yields and any(run.gated and not run.arrived and devices & {*run.devices} for run in runs)


def is_free(runs: Iterable[NodeRun], waiting: NodeRun) -> bool:
    """Return whether no other run holds the devices of a run that waits at the gate."""
    return not any({*run.held} & {*waiting.devices} for run in runs if run is not waiting)
