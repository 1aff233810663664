"""For training scripts: leases, checkpoints, progress and adaptation, so that Shoal may stop and move the job.

``Training`` is for PyTorch, the callbacks for the training loops of other libraries, ``Session`` for all other scripts.
Importing this imports no framework, except in a job that Shoal holds at the gate (``gate``), which imports torch; each
name imports what it needs when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shoal.trainer import gate

if TYPE_CHECKING:
    from shoal.trainer.schedules import Accordion as Accordion
    from shoal.trainer.schedules import NoiseDoubling as NoiseDoubling
    from shoal.trainer.schedules import Scripted as Scripted
    from shoal.trainer.session import Progress as Progress
    from shoal.trainer.session import Session as Session
    from shoal.trainer.session import Stopped as Stopped
    from shoal.trainer.torch.adaptation import Adaptation as Adaptation
    from shoal.trainer.torch.training import Training as Training

_HOMES = {
    "Accordion": "schedules",
    "Adaptation": "torch.adaptation",
    "NoiseDoubling": "schedules",
    "Scripted": "schedules",
    "Session": "session",
    "Stopped": "session",
    "Progress": "session",
    "Training": "torch.training",
}


gate.install()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
