"""Command lines of Slurm's programs and the script of an allocation; pure functions, with flags of Slurm 20.11."""

import math
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType

from shoal.core.errors import InputError
from shoal.core.spec_text import read_options
from shoal.core.units import Seconds
from shoal.provider.protocol import Allocation

NODE_FORMAT = "%N|%o|%T|%G|%E"
"""Fields of ``list_nodes``: name, address, state, gres, reason; the reason is last since it may hold any character."""

JOB_FORMAT = "%i|%T|%r|%N|%j"
"""Fields of ``list_jobs``: id, state, reason, node, name."""

MODES = ("pilot", "native")

_WARNING_SECONDS = 60
"""Fewest seconds before its time limit at which Slurm warns an agent."""


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """Options of ``slurm:key=value,…``; those that are not given are Slurm's own defaults.

    ``mode`` is ``pilot`` (allocations run as this user) or ``native`` (each as its owner). ``python`` is the nodes'
    interpreter with Shoal, if it is not this process's.
    """

    mode: str = "pilot"
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    reservation: str = ""
    time: str = ""
    cpus_per_gpu: int = 0
    mem_per_gpu: str = ""
    python: str = ""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InputError("provider slurm, option mode", self.mode, f"choose one of {', '.join(MODES)}")


def read_slurm_options(text: str) -> SlurmOptions:
    """Return the options in ``key=value,…``; ``InputError`` names the option that is wrong."""
    types = {option.name: int if option.name == "cpus_per_gpu" else str for option in fields(SlurmOptions)}
    return SlurmOptions(**read_options("provider slurm", text, types))


def submit(
    allocation: Allocation, options: SlurmOptions, *, job_name: str, log_file: str, whole_node: bool
) -> list[str]:
    """Return the ``sbatch`` that opens an allocation; its script comes on stdin.

    It is never requeued: Slurm would wait two minutes and could hold it. With ``whole_node`` no other job shares the
    node. Slurm warns the agent alone (``B:``) before the time limit, by the grace and at least a minute.
    """
    gpus = f"{allocation.kind}:{allocation.gpus}" if allocation.kind != "gpu" else str(allocation.gpus)
    words = ["sbatch", "--parsable", "--no-requeue", f"--job-name={job_name}", f"--nodelist={allocation.node}"]
    words += ["--nodes=1", "--ntasks=1", f"--gres=gpu:{gpus}", f"--signal=B:TERM@{_warning(allocation)}"]
    words += [f"--output={log_file}", "--open-mode=append", "--export=ALL", "--chdir=/"]
    words += ["--exclusive", "--mem=0"] if whole_node else _shares(allocation, options)
    words += [
        f"--{name}={value}"
        for name in ("partition", "account", "qos", "constraint", "reservation")
        if (value := (allocation.account if name == "account" else None) or getattr(options, name))
    ]
    if allocation.limit is not None:
        words.append(f"--time={whole_minutes(allocation.limit)}")
    elif options.time:
        words.append(f"--time={options.time}")
    words += [f"--container-image={allocation.image}"] if allocation.image else []
    words += [f"--uid={allocation.owner}"] if allocation.owner else []
    return words


def _warning(allocation: Allocation) -> int:
    return max(_WARNING_SECONDS, math.ceil(allocation.grace))


def _shares(allocation: Allocation, options: SlurmOptions) -> list[str]:
    """Return the flags for CPUs and memory of an allocation that shares its node; the job's come before the site's."""
    if allocation.cpus is not None:
        words = [f"--cpus-per-task={allocation.cpus}"]
    else:
        words = [f"--cpus-per-gpu={options.cpus_per_gpu}"] if options.cpus_per_gpu else []
    if allocation.memory is not None:
        return [*words, f"--mem={math.ceil(allocation.memory / 2**20)}M"]
    return words + ([f"--mem-per-gpu={options.mem_per_gpu}"] if options.mem_per_gpu else [])


def agent_script(
    python: str, arguments: Iterable[str], token_file: str, variables: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Return the script of an allocation: it opens the token's file, removes it and becomes the agent.

    A script that is started again finds no token and fails, so no second agent runs with it. ``variables`` are those
    of the allocation's user.
    """
    call = shlex.join([python, "-P", "-m", "shoal.agent", *arguments, "--token-fd", "3"])
    token = shlex.quote(token_file)
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    return f"#!/bin/sh\nexec 3<{token} || exit 1\n{exports}rm -f {token}\nexec {call}\n"


def list_nodes(options: SlurmOptions) -> list[str]:
    """Return the ``sinfo`` that lists nodes, one a line; a node of several partitions has several lines."""
    partition = [f"--partition={options.partition}"] if options.partition else []
    return ["sinfo", "--noheader", "--Node", *partition, f"--format={NODE_FORMAT}"]


def list_jobs(*, user: int | None = None, job_name: str | None = None) -> list[str]:
    """Return the ``squeue`` that lists jobs, including recently ended ones: of one user, or with one name."""
    words = ["squeue", "--noheader", "--states=all", f"--format={JOB_FORMAT}"]
    words += [f"--user={user}"] if user is not None else []
    return words + ([f"--name={job_name}"] if job_name is not None else [])


def warn(ref: str) -> list[str]:
    """Return the ``scancel`` that sends SIGTERM to an allocation's agent alone, if it runs.

    Without the state Slurm 20.11 to 26.05 retry for a minute and a half on a job that is still in the queue.
    """
    return ["scancel", "--batch", "--signal=TERM", "--state=RUNNING", _checked(ref)]


def withdraw(ref: str) -> list[str]:
    """Return the ``scancel`` that takes an allocation out of the queue, if it is still there."""
    return ["scancel", "--state=PENDING", _checked(ref)]


def cancel(ref: str) -> list[str]:
    """Return the ``scancel`` that ends an allocation: SIGTERM to all processes, SIGKILL after the site's KillWait."""
    return ["scancel", _checked(ref)]


def power_up(nodes: Iterable[str]) -> list[str]:
    """Return the ``scontrol`` that wakes nodes."""
    return ["scontrol", "update", f"NodeName={','.join(nodes)}", "State=POWER_UP"]


def show_configuration() -> list[str]:
    """Return the ``scontrol`` that prints the site's configuration."""
    return ["scontrol", "show", "config"]


def _checked(ref: str) -> str:
    """Return a job's number; without one ``scancel`` would cancel every job of the user."""
    if not ref.isdigit():
        raise ValueError(f"not the number of a Slurm job: {ref!r}")
    return ref


def whole_minutes(seconds: Seconds) -> int:
    """Return a time limit in Slurm's unit, at least one minute."""
    return max(1, math.ceil(seconds / 60))
