"""An ordinary training loop whose workers may come and go while it runs."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from shoal.trainer.elastic.training import Elastic, TrainingPlan
from shoal.trainer.samples import Epochs

inputs = torch.randn(512, 8, generator=torch.Generator().manual_seed(0))
targets = inputs.sum(dim=1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def loss_on(samples: NDArray[np.int64]) -> Tensor:
    """The mean loss on these samples."""
    return nn.functional.mse_loss(model(inputs[samples]), targets[samples])


plan = TrainingPlan(Epochs(512), epochs=4, batch=64, most_local=32)
elastic = Elastic(model, optimizer, loss_on, plan)
for step in elastic.steps():
    if step.rank == 0 and step.number % 8 == 7:
        print(f"step {step.number + 1}: loss {step.loss:.3f}, {step.world} worker(s)")
if elastic.complete:
    print("trained")
