"""Turn an order into the input of a keeper: working directory, program and environment of each rank.

A run that cannot start is refused with a sentence for the job's owner, before anything is started.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.agent.node_state import StartRanks
from shoal.agent.owner_environment import owner_environment
from shoal.agent.shipped_code import CODE
from shoal.agent.slurm.variables import as_batch
from shoal.agent.tenant_users import TenantUsers
from shoal.agent.workspace import Workspace, log_name
from shoal.core.errors import InputError
from shoal.core.job import ADAPTIVE
from shoal.core.sizes import show_size
from shoal.wire.batch_script import batch_options
from shoal.wire.messages import Roster, RunOrder

_PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
_PREFIXES = ("LC_", "CUDA_", "NCCL_", "OMP_", "CONDA_")
"""Variables of the agent's environment that a job gets. The others may hold secrets of the node's owner."""

_MOST_PATH = 80
"""Most characters of a PATH in a sentence."""


def check(order: RunOrder, workspace: Workspace, roots: Sequence[Path], environ: Mapping[str, str]) -> str:
    """Return the working directory of the ranks; ``InputError`` names what keeps them from starting."""
    batch_options(order.env)
    workdir = _workdir(order, workspace, roots)
    _check_program(order, workdir, environ)
    return workdir


def _workdir(order: RunOrder, workspace: Workspace, roots: Sequence[Path]) -> str:
    """Return the working folder, resolved. Without ``roots`` any is allowed: the job could change to it anyway."""
    job = workspace.job(order.id)
    resolved = os.path.realpath(job / (CODE if order.code is not None else order.workdir or ""))
    own = os.path.join(os.path.realpath(job.parent), job.name)
    allowed = [own, *(os.path.realpath(root) for root in roots)]
    if roots and not any(os.path.commonpath([root, resolved]) == root for root in allowed):
        hint = (
            f"is {resolved} on this node, outside the folders its agent allows ({', '.join(allowed[1:])}); use one of "
            "them, or let the operator start the agent with another --root"
        )
        raise InputError("workdir", order.workdir, hint)
    if not os.path.isdir(resolved):
        hint = f"{resolved} is not a directory on this node; make it there, or send the folder with `submit --ship`"
        raise InputError("workdir", order.workdir, hint)
    return resolved


def _check_program(order: RunOrder, workdir: str, environ: Mapping[str, str]) -> None:
    program = order.command[0] if order.command else ""
    search = owner_environment(order.env, environ)[0].get("PATH", os.defpath)
    folders = [""] if "/" in program else search.split(os.pathsep)
    found = [path for entry in folders if os.path.isfile(path := os.path.join(workdir, entry, program))]
    if not found:
        if "/" in program and os.path.isdir(os.path.join(workdir, program)):
            raise InputError("command", program, "is a folder on this node; name the program to run, or a file in it")
        shown = search if len(search) <= _MOST_PATH else f"{search[:_MOST_PATH]}…"
        where = f"in {workdir}" if "/" in program else f"on the job's PATH ({shown})"
        raise InputError("command", program, f"no such program {where} on this node; name its full path or set PATH")
    if not any(os.access(path, os.X_OK) for path in found):
        raise InputError(
            "command", program, f"{found[0]} is not executable; set its x permission, or name an interpreter"
        )


@dataclass(frozen=True, slots=True)
class Launcher:
    """Properties of a node that all its runs share: folders, address, kind of GPU and the agent's boot."""

    workspace: Workspace
    address: str
    kind: str
    boot: str
    users: TenantUsers | None = None
    """Users as which the jobs of tenants run; None: as the agent's."""
    cuda: bool = False
    """Whether the node has GPUs, off which runs are taken when they are suspended."""

    def owner(self, order: RunOrder) -> tuple[int, int] | None:
        """Return the user and group of the run's tenant; None if jobs run as the agent's user."""
        user = None if self.users is None else self.users.user(order.tenant)
        return None if user is None else (user.uid, user.gid)

    def check_user(self, order: RunOrder) -> None:
        """Raise ``InputError`` if the run's tenant has no system user here but must have one."""
        if self.users is not None:
            self.users.user(order.tenant)

    def keeper_input(
        self, start: StartRanks, *, workdir: str, lease: float, environ: Mapping[str, str]
    ) -> dict[str, Any]:
        """Return the input of a keeper: this node's ranks, and the monotonic time at which their lease ends."""
        order = start.order
        user = None if self.users is None else self.users.user(order.tenant)
        if user is not None:
            environ = {**environ, **user.hand_over(self.workspace, order.id, (order.job, order.incarnation))}
        passed = {name: value for name, value in environ.items() if name in _PASSED_ON or name.startswith(_PREFIXES)}
        env, note = owner_environment(order.env, passed)
        shared = {**self._environment(start, env), **self._trainer_environment(order)}
        if start.gated:
            shared["SHOAL_GATE"] = str(self.workspace.gate((order.job, order.incarnation)))
        store = f"{shared['MASTER_ADDR']}:{shared['MASTER_PORT']}"
        run = {
            "argv": order.command,
            "cwd": workdir,
            "env": shared,
            "logs": str(self.workspace.logs(order.id)),
            "folder": str(self.workspace.run((order.job, order.incarnation))),
            "lease": lease,
            "grace": order.grace,
            "signal": _signal(order),
            "ranks": [
                {
                    "rank": rank,
                    "env": self._rank_environment(order, rank, local, store),
                    "log": log_name(order.incarnation, rank),
                    "note": "" if local else note,
                }
                for local, rank in enumerate(range(order.first_rank, order.first_rank + order.local_ranks))
            ],
            "apart": order.roster is not None,
            "store": _store(start),
            "user": None if user is None else user.keeper_input(),
            "limits": _limits(order),
            "cuda": {"devices": list(start.devices)} if self.cuda else None,
            "terminal": order.terminal and order.first_rank == 0,
        }
        if (options := batch_options(order.env)) is not None:
            as_batch(run, start, options, self.workspace, self.workspace.programs())
        return run

    def _environment(self, start: StartRanks, env: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that all ranks share. A submission may set any variable that Shoal does not set."""
        order = start.order
        return {
            "PYTHONUNBUFFERED": "1",
            **env,
            "SHOAL_JOB": order.id,
            "SHOAL_INCARNATION": str(order.incarnation),
            "SHOAL_DIR": str(self.workspace.job(order.id)),
            "SHOAL_PROGRESS": str(self.workspace.progress((order.job, order.incarnation))),
            "SHOAL_BOOT": self.boot,
            "WORLD_SIZE": str(order.world),
            "LOCAL_WORLD_SIZE": str(order.local_ranks),
            "NODE_RANK": str(order.node_rank),
            "GROUP_RANK": str(order.node_rank),
            "MASTER_ADDR": order.master or self.address,
            "MASTER_PORT": str(start.port),
            # Devices are counted as NVML does, by bus; CUDA by default counts by speed.
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": ",".join(str(device) for device in start.devices),
        }

    def _trainer_environment(self, order: RunOrder) -> dict[str, str]:
        """Return the variables that only the trainer library reads."""
        found = {
            "SHOAL_LEASE": str(self.workspace.lease((order.job, order.incarnation))),
            "SHOAL_KIND": self.kind,
            "SHOAL_NODES": str(order.nodes),
        }
        if order.work is not None:
            found["SHOAL_WORK"] = repr(order.work)
        if order.batch is not None:
            found["SHOAL_BATCH"] = "adaptive" if order.batch == ADAPTIVE else str(order.batch.size)
        if order.limits is not None:
            limits = order.limits
            found["SHOAL_LIMITS"] = f"{limits.initial} {limits.most} {limits.least_local} {limits.most_local}"
        return found

    def _rank_environment(self, order: RunOrder, rank: int, local: int, store: str) -> dict[str, str]:
        """Return the variables of one rank; if the job is resized in place, also its worker number and the store."""
        own = {"RANK": str(rank), "SHOAL_RANK": str(rank), "LOCAL_RANK": str(local)}
        if order.roster is None:
            return own
        orders = str(self.workspace.orders((order.job, order.incarnation)))
        return {**own, "SHOAL_WORKER": str(rank), "SHOAL_STORE": store, "SHOAL_ORDERS": orders, **_secret(order.roster)}


def _limits(order: RunOrder) -> dict[str, Any]:
    """Return the limits of all ranks on this node together; ``shown`` is the memory in words."""
    shown = "" if order.memory is None else show_size(order.memory)
    return {"memory": order.memory, "cpus": order.cpus and order.cpus * order.local_ranks, "shown": shown}


def _signal(order: RunOrder) -> dict[str, Any] | None:
    """Return the signal that precedes the time limit, and the seconds after the start at which it is sent."""
    if order.signal is None or order.time is None:
        return None
    after = max(0.0, order.time - order.signal.before)
    return {"number": order.signal.number, "main": order.signal.main, "after": after}


def _store(start: StartRanks) -> dict[str, Any] | None:
    """Return the process, in the job's Python, where workers resized in place meet; None if it is on another node."""
    order = start.order
    if order.roster is None or not order.roster.keeps_store:
        return None
    argv = [order.command[0], "-m", "shoal.trainer.elastic.store", str(start.port)]
    return {"argv": argv, "env": _secret(order.roster), "log": log_name(order.incarnation, "store")}


def _secret(roster: Roster) -> dict[str, str]:
    """Return the environment variable with the secret that the job's store and its workers share."""
    return {"SHOAL_STORE_SECRET": roster.secret}
