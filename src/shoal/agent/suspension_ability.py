"""Whether a node can suspend runs, found out when its agent starts."""

import ctypes

from shoal.agent import devices
from shoal.agent.cuda_checkpoint import CUDA, NVML, why_not
from shoal.agent.suspension import total_memory
from shoal.wire.messages import SuspensionAbility

SIGNALS, CUDA_CHECKPOINT = "signals", "cuda checkpoint"

_SHARE_OF_MEMORY = 0.75
"""Fraction of the host memory that suspended runs may hold."""

_MOST_GPUS = 1
"""GPUs of a run that can be taken off them: NCCL, which joins several, has not been seen to survive it."""


def suspension_ability(cuda: str = CUDA, nvml: str = NVML) -> SuspensionAbility:
    """Return how this node suspends runs: by signals, or off its GPUs by the CUDA driver's process checkpoint."""
    memory = int(_SHARE_OF_MEMORY * total_memory())
    if not devices.reported(lambda _: ctypes.CDLL(nvml)):
        return SuspensionAbility(how=SIGNALS, memory=memory)
    # The driver lets root suspend any process and others their own: jobs run as the agent's user, or the agent is root.
    return SuspensionAbility(how=CUDA_CHECKPOINT, why_not=why_not(cuda), memory=memory, most_gpus=_MOST_GPUS)
