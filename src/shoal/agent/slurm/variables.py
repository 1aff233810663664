"""The run of a batch script: Slurm's variables and programs, and the one rank of each node that runs or serves it."""

import json
import os
import pwd
from pathlib import Path
from typing import Any

import msgspec

from shoal.agent.node_state import StartRanks
from shoal.agent.slurm.programs.step_layout import Slot, job_tasks, slots_of, tasks_per_node
from shoal.agent.workspace import Workspace
from shoal.core.sizes import show_size
from shoal.wire.batch_script import OPTIONS_VARIABLE, BatchOptions

_NOT_IN_SLURM = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK")
"""Variables of a rank that a batch script does not get: programs would take it for a training process."""


def as_batch(run: dict[str, Any], start: StartRanks, options: BatchOptions, space: Workspace, programs: Path) -> None:
    """Change the input of a keeper to that of a batch script's job on this node."""
    order, env = start.order, run["env"]
    hosts = [(host, gpus) for host, gpus in order.hosts] or [(env["MASTER_ADDR"], order.gpus)]
    slots = slots_of(hosts, options.nodes)
    tasks = job_tasks(slots, nodes=options.nodes, tasks=options.tasks, per_node=options.tasks_per_node)
    own = space.own((order.job, order.incarnation))
    devices = [str(device) for device in start.devices]
    job = {
        "node": order.node_rank,
        "hosts": [host for host, _ in hosts],
        "slots": slots,
        "tasks": tasks,
        "secret": order.secret,
        "devices": devices,
        "own": str(own),
        "bin": str(programs / "bin"),
        "options": msgspec.to_builtins(options),
    }
    run["argv"] = [str(programs / "batch"), *run["argv"]]
    for name in (*_NOT_IN_SLURM, OPTIONS_VARIABLE):
        env.pop(name, None)
    for rank in run["ranks"]:
        rank["env"] = {name: value for name, value in rank["env"].items() if name not in _NOT_IN_SLURM}
    if here := sum(slot.node == order.node_rank for slot in slots):
        # The limits are those of a node that the job asked for; this machine holds `here` of them.
        cpus, memory = (run["limits"][name] and here * run["limits"][name] for name in ("cpus", "memory"))
        run["limits"] = {"cpus": cpus, "memory": memory, "shown": "" if memory is None else show_size(memory)}
    first = slots[0]
    env |= {
        **_variables(start, options, slots, tasks),
        "SLURM_JOB_USER": env.get("USER") or _user(),
        "SLURM_JOB_UID": str(run["user"]["uid"] if run["user"] else os.getuid()),
        "SLURM_TMPDIR": str(own / "slurm_tmp"),
        "SLURM_JOB_GPUS": ",".join(devices),
        "PATH": f"{programs / 'bin'}{os.pathsep}{env.get('PATH', os.defpath)}",
        "CUDA_VISIBLE_DEVICES": ",".join(devices[first.first : first.first + first.gpus]),
        "SHOAL_BATCH_JOB": json.dumps(job),
    }
    env.setdefault("BASH_ENV", str(programs / "bash_env"))


def _variables(start: StartRanks, options: BatchOptions, slots: list[Slot], tasks: list[int] | None) -> dict[str, str]:
    """Return Slurm's variables of the batch script, as Slurm sets them on the first node."""
    order = start.order
    number, nodes = str(order.job + 1), str(len(slots))
    hosts = ",".join(slot.host for slot in slots)
    found = {
        "JOB_ID": number,
        "JOBID": number,
        "NNODES": nodes,
        "JOB_NUM_NODES": nodes,
        "NODEID": "0",
        "PROCID": "0",
        "LOCALID": "0",
        "NODELIST": hosts,
        "JOB_NODELIST": hosts,
        "GPUS_ON_NODE": str(slots[0].gpus),
        "TASKS_PER_NODE": tasks_per_node(tasks or [1] * len(slots)),
        "CPUS_ON_NODE": str(os.cpu_count() or 1),
        "JOB_CPUS_PER_NODE": tasks_per_node([os.cpu_count() or 1] * len(slots)),
        "CLUSTER_NAME": "shoal",
        "GTIDS": "0",
    }
    if tasks is not None:
        found["NTASKS"] = found["NPROCS"] = str(sum(tasks))
    if options.tasks_per_node:
        found["NTASKS_PER_NODE"] = str(max(tasks or [options.tasks_per_node]))
    if options.gpus_per_task:
        found["GPUS_PER_TASK"] = str(options.gpus_per_task)
    if order.incarnation > 1:  # scripts ask whether it is set
        found["RESTART_COUNT"] = str(order.incarnation - 1)
    return {**{f"SLURM_{name}": value for name, value in found.items()}, "SLURMD_NODENAME": slots[0].host}


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
