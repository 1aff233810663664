"""A small PyTorch job of the fidelity table: real gradients, real checkpoints, and times as if it had a cluster's GPUs.

Run by Shoal, once per GPU. The first step begins ``START_SECONDS`` after the process did, and a pass over m samples
lasts A + B·m seconds. What comes late, because the machine that plays the cluster was busy, is caught up on: to be
compared is how jobs are scheduled, not how this machine's processors are shared. A job that measures its own passes to
choose its batch is not catch_up. Rank 0 writes down, in the job's folder, when it began to train and what passes took:
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
    """Gives each pass its time, and keeps what passes took, by ranks and samples on each."""

    def __init__(self, fixed: float, per_sample: float, *, catch_up: bool) -> None:
        self._fixed, self._per_sample, self._catch_up = fixed, per_sample, catch_up
        self._world = int(os.environ["WORLD_SIZE"])
        self._taken: dict[tuple[int, int], tuple[int, float]] = {}
        started = time.monotonic() - _age() + START_SECONDS
        self._due = self._last = started if catch_up else time.monotonic()
        self._began = time.time() - (time.monotonic() - self._last)

    def end_pass(self, local: int) -> None:
        """A pass over so many samples is computed: wait until it is due."""
        self._due += self._fixed + self._per_sample * local
        time.sleep(max(0.0, self._due - time.monotonic()))
        now = time.monotonic()
        if not self._catch_up:
            self._due = now
        count, seconds = self._taken.get((self._world, local), (0, 0.0))
        self._taken[self._world, local] = count + 1, seconds + now - self._last
        self._last = now

    def write(self, folder: Path, incarnation: str) -> None:
        """Leave it where whoever runs the comparison finds it."""
        passes = [[*key, *taken] for key, taken in self._taken.items()]
        record = {"incarnation": int(incarnation), "began": self._began, "ended": time.time(), "passes": passes}
        (folder / f"passes-{incarnation}.json").write_text(json.dumps(record))


def _age() -> float:
    """Seconds since this process began."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def main(fixed: float, per_sample: float, epochs: int, change: str) -> None:
    """Train for so many epochs, from the checkpoint if there is one."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    inputs = torch.randn(EPOCH_SAMPLES, _FEATURES)
    # Labels that are mostly chance: their gradients are noisy enough for larger batches to be worth it.
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
    # Before it heeds warnings: who is told to stop while it loads has nothing to save, and ends at once.
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
    gc.freeze()  # there is nothing left to collect, and looking for it among all of PyTorch takes a second or two


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else "")
