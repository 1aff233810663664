"""Training whose workers come and go. Alone: python examples/train_elastic.py. On a cluster, resized while it trains:

shoal submit --gpus 1 --max-gpus 4 --resizes in_place -- python examples/train_elastic.py
"""

import os
import time

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from shoal.trainer.elastic.training import Elastic, TrainingPlan
from shoal.trainer.samples import Epochs

EPOCHS = int(os.environ.get("EPOCHS", "3"))
SECONDS_PER_SAMPLE = float(os.environ.get("SECONDS_PER_SAMPLE", "0"))
SAMPLES = 512

inputs = torch.randn(SAMPLES, 16, generator=torch.Generator().manual_seed(0))
targets = inputs.sum(dim=1, keepdim=True)
device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
uses = nn.Parameter(torch.zeros(SAMPLES, device=device))
"""Goes down by 1 when a sample is trained on, so that the model itself says how often each was."""
model.register_parameter("uses", uses)


def loss_on(samples: NDArray[np.int64]) -> Tensor:
    """The mean loss on these samples, on a machine that takes its time for each."""
    time.sleep(SECONDS_PER_SAMPLE * len(samples))
    chosen = torch.from_numpy(samples)
    error = nn.functional.mse_loss(model[:3](inputs[chosen].to(device)), targets[chosen].to(device))
    counted = uses[chosen].mean()
    return error + counted - counted.detach()


plan = TrainingPlan(Epochs(SAMPLES), EPOCHS, batch=64, most_local=32)
optimizer = torch.optim.SGD([{"params": model[:3].parameters()}, {"params": [uses], "lr": 64.0}], lr=0.05)
elastic = Elastic(model, optimizer, loss_on, plan)
for step in elastic.steps():
    if step.switch is not None and step.rank == 0:
        print(f"step {step.number}: {step.switch.before} workers became {step.switch.after}", flush=True)
    if step.rank == 0 and step.number % 8 == 7:
        print(f"step {step.number}: loss {step.loss:.4f}, {step.world} worker(s)", flush=True)
if elastic.complete:
    counts = sorted(set((-uses).round().int().tolist()))
    print(f"trained: every sample used {' or '.join(map(str, counts))} times in {EPOCHS} epochs", flush=True)
