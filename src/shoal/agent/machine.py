"""The machine as its agent reports it: CPUs, memory, and whether it can limit runs and suspend them."""

import ctypes

import msgspec

from shoal.agent import devices
from shoal.agent.cgroup_limits import enable_limits, machine_size
from shoal.agent.cuda_checkpoint import CUDA, NVML, why_not
from shoal.agent.suspension import total_memory
from shoal.wire.messages import Hello, SuspensionAbility

SIGNALS, CUDA_CHECKPOINT = "signals", "cuda checkpoint"

_SHARE_OF_MEMORY = 0.75
"""Fraction of the host memory that suspended runs may hold."""

_MOST_GPUS = 1
"""GPUs of a run that can be taken off them: NCCL, which joins several, has not been seen to survive it."""


def with_machine(hello: Hello, own_cgroup: str, no_cgroups: str) -> Hello:
    """Return an agent's first message with its machine; ``no_cgroups`` is why runs have no cgroups, else empty."""
    reason = no_cgroups or enable_limits(own_cgroup, f"shoal-agent-{hello.boot}")
    cpus, memory = machine_size()
    return msgspec.structs.replace(hello, cpus=cpus, memory=memory, no_limits=reason[:1000])


def suspension_ability(cuda: str = CUDA, nvml: str = NVML) -> SuspensionAbility:
    """Return how this node suspends runs: by signals, or off its GPUs by the CUDA driver's process checkpoint."""
    memory = int(_SHARE_OF_MEMORY * total_memory())
    if not devices.reported(lambda _: ctypes.CDLL(nvml)):
        return SuspensionAbility(how=SIGNALS, memory=memory)
    # The driver lets root suspend any process and others their own: jobs run as the agent's user, or the agent is root.
    return SuspensionAbility(how=CUDA_CHECKPOINT, why_not=why_not(cuda), memory=memory, most_gpus=_MOST_GPUS)
