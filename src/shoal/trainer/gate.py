"""The gate: a job that Shoal starts before its GPU is free waits there until it is, before it uses the GPU.

The variable ``SHOAL_GATE`` names a file of the agent's; the gate is closed as long as the file exists. A process waits
at its first use of CUDA through PyTorch, or when its session opens, whichever comes first. Until then it imports torch
and works on the processor. Before it reports that it waits, it imports the modules of its first step and reads its
checkpoint: the job that is to leave trains meanwhile.
``SHOAL_GATE=off`` in a job's environment opts out.
"""

import os
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from shoal.trainer.checkpoint import read_newest_ahead

_LOOK_SECONDS = 0.005


def _closed() -> bool:
    gate = os.environ.get("SHOAL_GATE", "")
    return gate.startswith("/") and os.path.exists(gate)


def wait() -> None:
    """Prepare the first step, report the arrival to the agent and wait until the gate is open, if there is one.

    The waiting thread itself prepares: a second thread that imports modules of PyTorch while this one does can make
    both imports fail, since these modules import each other.
    """
    if not _closed():
        return
    _prepare()
    progress = os.environ.get("SHOAL_PROGRESS")
    if progress:
        with suppress(OSError):
            Path(progress).with_name("gate").touch()
    while _closed():
        time.sleep(_LOOK_SECONDS)


def _prepare() -> None:
    """Do what needs no GPU, so that no GPU is idle for it later.

    Check the job's newest checkpoint, and import the 800 modules that PyTorch imports for its first optimizer.
    """
    if os.environ.get("SHOAL_DIR"):
        read_newest_ahead(Path(os.environ["SHOAL_DIR"], "checkpoints"))
    if "torch" in sys.modules:
        with suppress(Exception):
            import_module("torch._dynamo")


def install() -> None:
    """Make PyTorch's first use of CUDA wait until the gate is open."""
    if not _closed():
        return
    import torch

    cuda: Any = torch.cuda
    initialise = cuda._lazy_init

    def wait_first() -> None:
        wait()
        cuda._lazy_init = initialise
        initialise()

    cuda._lazy_init = wait_first


def cuda_in_use() -> bool:
    """Return whether this process has used CUDA, through PyTorch or by loading the driver's library without it."""
    torch = sys.modules.get("torch")
    if torch is not None:
        return bool(torch.cuda.is_initialized())
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            return any("/libcuda.so" in line for line in file)
    except OSError:
        return True


AVAILABLE = not cuda_in_use()
"""Whether this process had not used CUDA when it imported this module: such a job can be held at the gate."""
