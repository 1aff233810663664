"""Requests of operators and users besides submissions: other GPUs for a job, quotas, drained and resumed nodes."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from tests.dst.network import Rejection
from tests.dst.plan import Request

from shoal.live.control_plane import ControlPlane
from shoal.wire.messages import QuotaMessage, Reshape

TIMEOUT, PAUSE = 5.0, 0.3
LATEST_COPY = 40.0
"""Seconds after which no copy of an earlier request is on its way."""


def send(trial: Any, request: Request) -> None:
    """Send a request once it can be sent; it is repeated until it is answered."""
    nodes, gpus, which = trial.plan.nodes, trial.plan.gpus, request.which
    if request.kind == "reshape":
        if not trial.acknowledged:
            trial.world.after(PAUSE, send, trial, request)
            return
        ids = list(trial.acknowledged.values())
        id, wanted = ids[which % len(ids)], 1 + which % (nodes * gpus)
        shape = Reshape(wanted, 1, wanted + 1) if which % 3 else Reshape(wanted)
        repeat(trial, f"reshape {id} {shape}", lambda plane: plane.reshape(id, shape, None))
    elif request.kind == "quota":
        most = None if which % 3 == 0 else which % (nodes * gpus)
        quota = QuotaMessage(tenant=("ann", "bob")[which % 2], gpus=most, guaranteed=which % 4)
        repeat(trial, str(quota), lambda plane: plane.set_quota(quota))
    elif request.kind == "drain":
        name = trial.nodes[which % nodes].name
        repeat(trial, f"drain {name}", lambda plane: plane.drain(name, "maintenance", "operator"))
    else:
        name = trial.nodes[which % nodes].name
        repeat(trial, f"resume {name}", lambda plane: plane.resume_node(name))


def release(trial: Any) -> None:
    """Remove every quota and resume every node, now and once no copy of an earlier request can come any more."""
    for seconds in (0.0, LATEST_COPY):
        for tenant in ("ann", "bob"):
            quota = QuotaMessage(tenant=tenant)
            trial.world.after(seconds, repeat, trial, str(quota), lambda plane, quota=quota: plane.set_quota(quota))
        for node in range(trial.plan.nodes):
            trial.world.after(seconds, send, trial, Request(0.0, "resume", node))


def repeat(trial: Any, text: str, ask: Callable[[ControlPlane], "Future[None]"]) -> None:
    """Send a request until it is answered."""

    def answered(found: Any) -> None:
        if isinstance(found, Rejection) and not found.busy:
            trial.world.note("refused", text, found)
        elif isinstance(found, Exception):
            trial.world.after(PAUSE, repeat, trial, text, ask)
        else:
            trial.world.note("granted", text)

    trial.door.call("operate", ask, TIMEOUT, answered)
