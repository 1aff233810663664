"""CPUs and memory of nodes, as agents report them when they connect. They are not journaled; placement ignores them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from shoal.core.errors import InputError
from shoal.core.sizes import show_size
from shoal.core.topology import Topology
from shoal.wire.messages import Hello, Submission


@dataclass(frozen=True, slots=True)
class Machine:
    """A node's CPUs and bytes of memory, and why its agent enforces no limits (empty if it does)."""

    cpus: int | None = None
    memory: int | None = None
    no_limits: str = ""


def machine_of(hello: Hello) -> Machine:
    """Return the machine as its agent describes it."""
    return Machine(hello.cpus, hello.memory, hello.no_limits)


def check_fits(
    wanted: Submission, topology: Topology, machines: Mapping[int, Machine], retired: Collection[int] = ()
) -> None:
    """Raise ``InputError`` if no node of the job's kinds has the CPUs or the memory that one rank or node needs.

    As long as a node has not connected, its CPUs and memory are not known, and no job is refused.
    """
    if wanted.cpus is None and wanted.memory is None:
        return
    usable = [
        index
        for index, node in enumerate(topology.nodes)
        if index not in retired and (wanted.kinds is None or node.kind in wanted.kinds)
    ]
    found = [machines.get(index, Machine()) for index in usable]
    of = f" of {' or '.join(wanted.kinds)}" if wanted.kinds else ""
    cpus = [machine.cpus for machine in found if machine.cpus is not None]
    if wanted.cpus is not None and len(cpus) == len(usable) and wanted.cpus > max(cpus, default=wanted.cpus):
        raise InputError("cpus", wanted.cpus, f"is per rank, and the most that a node{of} has is {max(cpus)}")
    memory = [machine.memory for machine in found if machine.memory is not None]
    if wanted.memory is not None and len(memory) == len(usable) and wanted.memory > max(memory, default=wanted.memory):
        hint = f"is per node, and the most that a node{of} has is {show_size(max(memory))}"
        raise InputError("memory", show_size(wanted.memory), hint)
