"""A small PyTorch job of the fidelity table: real gradients and checkpoints, and step times like those of GPUs.

Run by Shoal, once per GPU. The first step begins ``START_SECONDS`` after the process started, and a pass over m samples
lasts A + B·m seconds. Delays caused by load on the machine are made up for in later passes, since the comparison is
about scheduling, not about sharing this machine's processors. A job that measures its own passes to choose its batch
size does not make up for delays. Rank 0 writes to the job's folder when it began to train and how long passes took:
python -m shoal.research.repro.fidelity_job A B EPOCHS [EPOCH:BATCH]
with EPOCH:BATCH for a job that changes its batch size itself.
"""

import gc
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from shoal.research.repro.fidelity_queue import BATCH, EPOCH_SAMPLES, MOST_LOCAL, START_SECONDS, TUNE_EVERY
from shoal.trainer import Adaptation, Scripted, Training

_FEATURES, _CLASSES, _HIDDEN = 32, 4, 32


class Pacer:
    """Extends each pass to its declared time, and sums the time of passes by ranks and local samples.

    ``catch_up`` makes later passes shorter after a delay.
    """

    def __init__(self, fixed: float, per_sample: float, *, catch_up: bool) -> None:
        self._fixed, self._per_sample, self._catch_up = fixed, per_sample, catch_up
        self._world = int(os.environ["WORLD_SIZE"])
        self._taken: dict[tuple[int, int], tuple[int, float]] = {}
        started = time.monotonic() - _age() + START_SECONDS
        self._due = self._last = started if catch_up else time.monotonic()
        self._began = time.time() - (time.monotonic() - self._last)

    def end_pass(self, local: int) -> None:
        """End a pass over ``local`` samples: wait until its declared end."""
        self._due += self._fixed + self._per_sample * local
        time.sleep(max(0.0, self._due - time.monotonic()))
        now = time.monotonic()
        if not self._catch_up:
            self._due = now
        count, seconds = self._taken.get((self._world, local), (0, 0.0))
        self._taken[self._world, local] = count + 1, seconds + now - self._last
        self._last = now

    def write(self, folder: Path, incarnation: str) -> None:
        """Write the measurements to the job's folder."""
        passes = [[*key, *taken] for key, taken in self._taken.items()]
        record = {"incarnation": int(incarnation), "began": self._began, "ended": time.time(), "passes": passes}
        (folder / f"passes-{incarnation}.json").write_text(json.dumps(record))


def _age() -> float:
    """Seconds since this process started."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def main(fixed: float, per_sample: float, epochs: int, change: str) -> None:
    """Train for ``epochs`` epochs, from the last checkpoint if there is one."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    inputs = torch.randn(EPOCH_SAMPLES, _FEATURES)
    # Mostly random labels: their gradients are noisy enough for larger batches to pay.
    labels = (inputs @ torch.randn(_FEATURES, _CLASSES) + 12.0 * torch.randn(EPOCH_SAMPLES, _CLASSES)).argmax(1)
    model: nn.Module = nn.Sequential(nn.Linear(_FEATURES, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, _CLASSES))
    if dist.get_world_size() > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=BATCH // dist.get_world_size(), shuffle=True)
    adapt, tuned = None, os.environ.get("SHOAL_BATCH") == "adaptive"
    if change:
        epoch, batch = map(int, change.split(":"))
        adapt = Adaptation(schedule=Scripted(((0, BATCH), (epoch, batch))))
    elif tuned:
        adapt = Adaptation(tune_every=TUNE_EVERY)
    # Signals are not handled yet: a job stopped while loading has nothing to save and ends at once.
    time.sleep(max(0.0, START_SECONDS - _age()))
    run = Training(model, optimizer, adapt=adapt, most_local=MOST_LOCAL)
    pacer: Pacer | None = None
    try:
        for _ in run.epochs(epochs):
            for batch_inputs, target in run.batches(loader):
                pacer = pacer or Pacer(fixed, per_sample, catch_up=not tuned)
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(batch_inputs), target)
                loss.backward()
                optimizer.step()
                run.loss(loss.detach())
                pacer.end_pass(len(target))
    finally:
        if pacer is not None and dist.get_rank() == 0:
            pacer.write(Path(os.environ["SHOAL_DIR"]), os.environ["SHOAL_INCARNATION"])
    dist.destroy_process_group()
    gc.freeze()  # nothing is left to collect, and a collection over all of PyTorch takes a second or two


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else "")
