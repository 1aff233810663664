"""One leg of a trial, for `shoal search` with any of its schedulers, Optuna's among them.

In the search file: command: [python, train_trial.py, "--rate={rate}", "--until={until}", "--folder={folder}"]

A leg takes up the trial's own folder where the last one left it, and prints the loss that the search compares.
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from shoal.trainer import Training

EPOCHS = 8

parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float, default=0.1)
parser.add_argument("--until", type=float, default=1.0, help="the part of the whole training that this leg ends at")
parser.add_argument("--folder", type=Path, help="the trial's own")
given = parser.parse_args()

torch.manual_seed(0)
inputs = torch.randn(512, 16)
labels = (inputs @ torch.randn(16, 4)).argmax(1)
loader = DataLoader(TensorDataset(inputs, labels), batch_size=32, shuffle=True)
model = nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=given.rate)

run = Training(model, optimizer, folder=given.folder)
for _ in run.epochs(round(given.until * EPOCHS)):
    for batch, target in run.batches(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch), target).backward()
        optimizer.step()
run.save()
with torch.no_grad():
    print(f"loss {nn.functional.cross_entropy(model(inputs), labels).item():.6f}", flush=True)
