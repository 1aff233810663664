"""Assumed training speeds of AFS's nine models, of which only the useful number of GPUs is published.

AFS (NSDI '21, Table 4) gives each model's batch size and the number of GPUs at which its throughput peaks, but no
throughputs. `PeakedProfile` is a curve through these: nearly linear at first, highest exactly at the peak, falling
beyond it. One GPU makes one sample per second; only ratios mean anything.
"""

from dataclasses import dataclass
from typing import ClassVar

from shoal.core.topology import Locality

_FIRST = 0.03
"""Time that each further GPU costs the others, as a fraction of one GPU's time."""

SOURCE = "assumed by this project: a curve through the peak stated in Hwang et al., NSDI 2021, Table 4"


@dataclass(frozen=True, slots=True)
class PeakedProfile:
    """Speed-up k / (1 + c(k − 1) + (1 − c)k(k − 1)/K²), c = 0.03: 1 on one GPU and highest on K of them.

    The batch size is that of the whole gang on any number of GPUs, as in AFS. Distance has no effect: AFS's simulator
    has one throughput for each number of GPUs.
    """

    peak_gpus: int
    batch_size: int
    kind: str = "gtx1080"
    per_gpu_batch: ClassVar[bool] = False

    @property
    def kinds(self) -> tuple[str, ...] | None:
        """The one kind that AFS used."""
        return (self.kind,)

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The batch size of Table 4."""
        return (self.batch_size,)

    def speedup(self, gpus: int) -> float:
        """Speed relative to one GPU."""
        return gpus / (1.0 + _FIRST * (gpus - 1) + (1.0 - _FIRST) * gpus * (gpus - 1) / self.peak_gpus**2)

    def rate(self, kind: str, gpus: int, locality: Locality, batch_size: int | None = None) -> float:
        """Samples per second of the gang, at any distance and batch size; 0.0 on another kind."""
        return self.speedup(gpus) if kind == self.kind and gpus > 0 else 0.0


AFS_MODELS: dict[str, PeakedProfile] = {
    "afs-vgg16": PeakedProfile(8, 256),
    "afs-googlenet": PeakedProfile(20, 128),
    "afs-inception-v4": PeakedProfile(52, 256),
    "afs-resnet-50": PeakedProfile(28, 128),
    "afs-dcgan": PeakedProfile(20, 256),
    "afs-video-prediction": PeakedProfile(28, 64),
    "afs-chatbot": PeakedProfile(4, 256),
    "afs-deepspeech2": PeakedProfile(20, 64),
    "afs-transformer": PeakedProfile(44, 256),
}
"""Table 4, in its order, under names that the measured models of the catalogue do not have."""
