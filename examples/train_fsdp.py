"""A small transformer, sharded over ranks with FSDP2: Shoal may stop it and resume it on another number of GPUs."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from shoal.trainer import Training  # shoal

EPOCHS = int(os.environ.get("EPOCHS", "3"))

dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
torch.manual_seed(0)
tokens = torch.randint(0, 50, (256, 12))
dataset = TensorDataset(tokens, tokens.flip(1))

device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
model = nn.Sequential(nn.Embedding(50, 32), nn.TransformerEncoder(layer, 2), nn.Linear(32, 50)).to(device)
for block in model[1].layers:
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(dataset, batch_size=32, sampler=DistributedSampler(dataset))

run = Training(model, optimizer)  # shoal
for epoch in run.epochs(EPOCHS):  # shoal: was range(EPOCHS)
    for batch, target in run.batches(loader):  # shoal: was loader
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch.to(device)).flatten(0, 1), target.to(device).flatten())
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
dist.destroy_process_group()
