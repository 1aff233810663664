"""DDP with a batch size that Shoal may adapt, if it is submitted with max_batch_size under a policy that does so.

    shoal submit adaptive.yaml        # command, gpus: 2, batch_size: 64, max_batch_size: 1024, max_local_batch: 256

With SCHEDULE=gns or SCHEDULE=accordion the script changes the batch size itself, and the scheduler only observes it.
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from shoal.trainer import Accordion, Adaptation, NoiseDoubling, Training

EPOCHS = int(os.environ.get("EPOCHS", "3"))
SCHEDULES = {"gns": NoiseDoubling(most=1024), "accordion": Accordion(small=64, large=1024)}

dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
torch.manual_seed(0)
inputs = torch.randn(4096, 64)
labels = (inputs @ torch.randn(64, 10) + 3 * torch.randn(4096, 10)).argmax(1)
dataset = TensorDataset(inputs, labels)

device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(dataset, batch_size=64 // dist.get_world_size(), sampler=DistributedSampler(dataset))

adapt = Adaptation(learning_rate="adascale", schedule=SCHEDULES.get(os.environ.get("SCHEDULE", "")), tune_every=2.0)
run = Training(model, optimizer, adapt=adapt, most_local=256)
for epoch in run.epochs(EPOCHS):
    for batch, target in run.batches(loader):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch.to(device)), target.to(device))
        loss.backward()
        optimizer.step()
        run.loss(loss.detach())
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: {len(target) * dist.get_world_size()} at once, loss {loss.item():.4f}", flush=True)
dist.destroy_process_group()
