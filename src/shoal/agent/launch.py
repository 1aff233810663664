"""From an order to what a keeper is told: where the job runs, with which program and in which environment.

What is refused here is refused with a sentence for the job's owner, before anything is started.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.agent.node_state import StartRanks
from shoal.agent.workspace import Workspace, log_name, store_log_name
from shoal.core.errors import InputError
from shoal.core.job import ADAPTIVE
from shoal.wire.messages import RunOrder

_PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
_PASSED_ON_PREFIXES = ("LC_", "CUDA_", "NCCL_", "OMP_", "CONDA_")
"""What a job sees of its agent's environment. The rest may hold secrets of whoever runs the node."""


def check(order: RunOrder, folder: Workspace, roots: Sequence[Path], environ: Mapping[str, str]) -> str:
    """The folder in which the ranks are to run; an error that names what is wrong where they cannot."""
    workdir = _workdir(order, folder, roots)
    _check_program(order, workdir, environ)
    return workdir


def _workdir(order: RunOrder, folder: Workspace, roots: Sequence[Path]) -> str:
    job = folder.job(order.id)
    resolved = os.path.realpath(job / (order.workdir or ""))
    own = os.path.join(os.path.realpath(job.parent), job.name)
    allowed = [own, *(os.path.realpath(root) for root in roots)]
    if not any(os.path.commonpath([root, resolved]) == root for root in allowed):
        places = ", ".join(allowed[1:]) or "none"
        hint = (
            f"is {resolved} on this node, outside the folders its agent allows ({places}); use one of them or leave "
            "workdir out, or let the operator add a root"
        )
        raise InputError("workdir", order.workdir, hint)
    if not os.path.isdir(resolved):
        raise InputError("workdir", order.workdir, f"{resolved} is not a directory on this node; make it there")
    return resolved


def _check_program(order: RunOrder, workdir: str, environ: Mapping[str, str]) -> None:
    program = order.command[0] if order.command else ""
    search = order.env.get("PATH", environ.get("PATH", os.defpath))
    folders = [""] if "/" in program else search.split(os.pathsep)
    found = [path for entry in folders if os.path.isfile(path := os.path.join(workdir, entry, program))]
    if not found:
        where = f"in {workdir}" if "/" in program else f"on the job's PATH ({search})"
        raise InputError("command", program, f"no such program {where} on this node; name its full path or set PATH")
    if not any(os.access(path, os.X_OK) for path in found):
        raise InputError(
            "command", program, f"{found[0]} is not executable; set its x permission, or name an interpreter"
        )


def keeper_line(
    start: StartRanks,
    *,
    workdir: str,
    folder: Workspace,
    address: str,
    kind: str,
    boot: str,
    lease: float,
    environ: Mapping[str, str],
) -> dict[str, Any]:
    """What a keeper is told to start: this node's ranks, and the moment at which their lease ends."""
    order = start.order
    shared = {**_environment(start, folder, address, boot, environ), **_for_trainer(start, folder, kind)}
    return {
        "argv": order.command,
        "cwd": workdir,
        "env": shared,
        "logs": str(folder.logs(order.id)),
        "lease": lease,
        "grace": order.grace,
        "ranks": [
            {
                "rank": rank,
                "env": _of_rank(start, folder, rank, local, f"{shared['MASTER_ADDR']}:{shared['MASTER_PORT']}"),
                "log": log_name(order.incarnation, rank),
            }
            for local, rank in enumerate(range(order.first_rank, order.first_rank + order.local_ranks))
        ],
        "apart": order.roster is not None,
        "store": _store(start),
    }


def _of_rank(start: StartRanks, folder: Workspace, rank: int, local: int, store: str) -> dict[str, str]:
    """What only one rank is told; where workers come and go, also its number and where it meets the others."""
    own = {"RANK": str(rank), "SHOAL_RANK": str(rank), "LOCAL_RANK": str(local)}
    order = start.order
    if order.roster is None:
        return own
    orders = str(folder.orders((order.job, order.incarnation)))
    return {**own, "SHOAL_WORKER": str(rank), "SHOAL_STORE": store, "SHOAL_ORDERS": orders}


def _store(start: StartRanks) -> dict[str, Any] | None:
    """The process in which workers that come and go meet, where this node is to keep it: of the job's own Python."""
    order = start.order
    if order.roster is None or not order.roster.keeps_store:
        return None
    argv = [order.command[0], "-m", "shoal.trainer.elastic.store", str(start.port)]
    return {"argv": argv, "env": {}, "log": store_log_name(order.incarnation)}


def _environment(
    start: StartRanks, folder: Workspace, address: str, boot: str, environ: Mapping[str, str]
) -> dict[str, str]:
    """What all ranks of a node share. The submission may set anything but what Shoal itself sets."""
    order = start.order
    passed = {
        name: value for name, value in environ.items() if name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIXES)
    }
    return {
        **passed,
        "PYTHONUNBUFFERED": "1",
        **order.env,
        "SHOAL_JOB": order.id,
        "SHOAL_INCARNATION": str(order.incarnation),
        "SHOAL_DIR": str(folder.job(order.id)),
        "SHOAL_PROGRESS": str(folder.progress((order.job, order.incarnation))),
        "SHOAL_BOOT": boot,
        "WORLD_SIZE": str(order.world),
        "LOCAL_WORLD_SIZE": str(order.local_ranks),
        "NODE_RANK": str(order.node_rank),
        "GROUP_RANK": str(order.node_rank),
        "MASTER_ADDR": order.master or address,
        "MASTER_PORT": str(start.port),
        # Devices are counted as NVML does, which is by bus and not by speed, CUDA's own order.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(str(device) for device in start.devices),
    }


def _for_trainer(start: StartRanks, folder: Workspace, kind: str) -> dict[str, str]:
    """What only the trainer library asks for."""
    order = start.order
    told = {
        "SHOAL_LEASE": str(folder.lease((order.job, order.incarnation))),
        "SHOAL_KIND": kind,
        "SHOAL_NODES": str(order.nodes),
    }
    if order.work is not None:
        told["SHOAL_WORK"] = repr(order.work)
    if order.batch is not None:
        told["SHOAL_BATCH"] = "adaptive" if order.batch == ADAPTIVE else str(order.batch.size)
    if order.limits is not None:
        limits = order.limits
        told["SHOAL_LIMITS"] = f"{limits.initial} {limits.most} {limits.least_local} {limits.most_local}"
    return told
