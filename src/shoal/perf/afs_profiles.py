"""Training speeds that are assumed, not measured: AFS's nine models, known only by how many GPUs each can use.

AFS (NSDI '21, Table 4) gives each model's batch size and the number of GPUs at which its throughput peaks, but no
throughputs. ``PeakedProfile`` puts a curve through what is given: nearly linear at first, highest exactly at the peak,
falling beyond it, so that a GPU given past the peak is a GPU wasted. One GPU makes one sample a second; only ratios
mean anything.
"""

from dataclasses import dataclass

from shoal.core.topology import Locality

_FIRST = 0.03
"""What each further GPU costs the others from the start, as a part of one GPU's time."""

SOURCE = "assumed by this project: a curve through the peak stated in Hwang et al., NSDI 2021, Table 4"


@dataclass(frozen=True, slots=True)
class PeakedProfile:
    """Speed-up k / (1 + c(k − 1) + (1 − c)k(k − 1)/K²), c = 0.03: 1 on one GPU and highest on K of them.

    The batch size is that of the whole gang and stays what it is however many GPUs share it, as AFS trains. Distance
    plays no part: AFS's own simulator knows a throughput for each number of GPUs and nothing else.
    """

    peak_gpus: int
    batch_size: int
    kind: str = "gtx1080"

    @property
    def unit(self) -> str:
        """Samples; one GPU makes one a second."""
        return "samples"

    @property
    def kinds(self) -> tuple[str, ...] | None:
        """The one kind that AFS used."""
        return (self.kind,)

    @property
    def per_gpu_batch(self) -> bool:
        """Batch sizes count the samples of the whole gang."""
        return False

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The one that Table 4 states."""
        return (self.batch_size,)

    @property
    def default_batch(self) -> int:
        """The one that Table 4 states."""
        return self.batch_size

    def speedup(self, gpus: int) -> float:
        """How much faster than on one GPU."""
        return gpus / (1.0 + _FIRST * (gpus - 1) + (1.0 - _FIRST) * gpus * (gpus - 1) / self.peak_gpus**2)

    def rate(self, kind: str, gpus: int, locality: Locality, batch_size: int | None = None) -> float:
        """Samples per second of the gang; 0.0 on another kind. Neither distance nor batch size plays a part."""
        return self.speedup(gpus) if kind == self.kind and gpus > 0 else 0.0

    def spread(self, kind: str) -> float:
        """None is claimed: the curve is taken as it is."""
        return 0.0


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
"""Table 4, in its order; named apart from the catalogue's measured models."""
