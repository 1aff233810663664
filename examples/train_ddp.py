"""Digits, or something like them, with PyTorch DDP. Alone: python examples/train_ddp.py, or with torchrun.

Four lines make it one that Shoal may stop, move and resize: those that end with # shoal.
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from shoal.trainer import Training  # shoal

EPOCHS = int(os.environ.get("EPOCHS", "3"))

if "RANK" in os.environ:
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
else:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
torch.manual_seed(0)
inputs = torch.randn(2048, 64)
labels = (inputs @ torch.randn(64, 10)).argmax(1)
dataset = TensorDataset(inputs, labels)

device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10)).to(device)
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
loader = DataLoader(dataset, batch_size=32, sampler=DistributedSampler(dataset))

run = Training(model, optimizer, scheduler)  # shoal
for epoch in run.epochs(EPOCHS):  # shoal: was range(EPOCHS)
    for batch, target in run.batches(loader):  # shoal: was loader
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch.to(device)), target.to(device))
        loss.backward()
        optimizer.step()
    scheduler.step()
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
dist.destroy_process_group()
