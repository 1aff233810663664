"""The machine as an agent reports it when it connects: CPUs, memory, and whether it can limit those of runs."""

import msgspec

from shoal.agent.cgroup_limits import enable_limits, machine_size
from shoal.wire.messages import Hello


def with_machine(hello: Hello, own_cgroup: str, no_cgroups: str) -> Hello:
    """Return an agent's first message with its machine; ``no_cgroups`` is why runs have no cgroups, else empty."""
    reason = no_cgroups or enable_limits(own_cgroup, f"shoal-agent-{hello.boot}")
    cpus, memory = machine_size()
    return msgspec.structs.replace(hello, cpus=cpus, memory=memory, no_limits=reason[:1000])
