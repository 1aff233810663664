"""A small PyTorch job that saves and resumes; its lock files show whether two incarnations ever run at once.

``python torch_job.py STEPS SECONDS``: seconds of a step, which stand for a GPU's.
"""

import fcntl
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from shoal.trainer import Training

steps, seconds = int(sys.argv[1]), float(sys.argv[2])
folder, rank, world = Path(os.environ["SHOAL_DIR"]), os.environ["RANK"], int(os.environ["WORLD_SIZE"])
lock = (folder / f"lock-{rank}").open("w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    (folder / "overlap").write_text(os.environ["SHOAL_INCARNATION"])
    sys.exit(3)
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
data = TensorDataset(torch.randn(4 * steps, 8), torch.randint(0, 2, (4 * steps,)))
model = DistributedDataParallel(nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=4 // world if world in (1, 2, 4) else 1, sampler=DistributedSampler(data))
run = Training(model, optimizer)
for _ in run.epochs(1):
    for inputs, labels in run.batches(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        time.sleep(seconds)
dist.destroy_process_group()
