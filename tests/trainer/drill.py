"""Runs of a small PyTorch training as Shoal would start them: one process a rank, stopped and resumed at will.

``python -m tests.trainer.drill FOLDER`` takes a list of runs as JSON on its input and prints what each came to. All
ranks are forked from one process, so that PyTorch is loaded once.
"""

import json
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # the first optimizer would bring it in, in every rank anew
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from shoal.core.batch_limits import BatchLimits
from shoal.trainer import Adaptation, Training
from shoal.trainer.torch import step_coordinator

SIZE, EPOCHS, BATCH = 101, 3, 12


class Numbered(Dataset[Any]):  # type: ignore[misc]
    """Samples that know their number."""

    def __init__(self) -> None:
        chance = torch.Generator().manual_seed(5)
        self.inputs = torch.randn(SIZE, 10, generator=chance)
        self.labels = (self.inputs @ torch.randn(10, 3, generator=chance)).argmax(1)

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        return self.inputs[index], self.labels[index], index


def rank_main(folder: Path, told: dict[str, Any], rank: int, port: int) -> None:
    world = told["world"]
    place = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    home = folder / told["job"]
    home.mkdir(parents=True, exist_ok=True)
    managed = {"SHOAL_JOB": told["job"], "SHOAL_DIR": home, "SHOAL_PROGRESS": home / "progress", **told.get("env", {})}
    os.environ.update({name: str(value) for name, value in {**place, **managed}.items()})
    torch.set_num_threads(1)
    if world > 1 or told.get("sharded"):
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Dropout(told["dropout"]), nn.Linear(16, 3))
    if told.get("sharded"):
        fully_shard(model)
    elif world > 1:
        model = DistributedDataParallel(model)
    train(model, told, rank, home)


def train(model: nn.Module, told: dict[str, Any], rank: int, home: Path) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1])
    data = Numbered()
    world = told["world"]
    sampler = DistributedSampler(data, world, rank)
    loader = DataLoader(data, batch_size=told.get("local", BATCH // world), sampler=sampler)
    limits = BatchLimits(BATCH, 4 * BATCH, 2, BATCH)
    adapt = Adaptation(limits=limits, tune_every=0.0) if told.get("adapts") else None
    step_coordinator._EXCHANGE_SECONDS = told.get("exchange_seconds", 0.0)
    run = Training(model, optimizer, scheduler, adapt=adapt)
    steps = 0
    with (home / f"log.{rank}").open("a") as log:
        for epoch in run.epochs(EPOCHS):
            for inputs, labels, numbers in run.batches(loader):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(inputs), labels)
                loss.backward()
                optimizer.step()
                steps += 1
                if steps == told.get("warned_at") and rank == world - 1:
                    os.kill(os.getpid(), signal.SIGTERM)
                print(json.dumps([epoch, numbers.tolist(), loss.item()]), file=log, flush=True)
            scheduler.step()
        torch.manual_seed(0)
        model.eval()
        with torch.no_grad():
            final = nn.functional.cross_entropy(model(data.inputs), data.labels).item()
        print(json.dumps(["end", optimizer.param_groups[0]["lr"], final]), file=log, flush=True)


def run_one(folder: Path, told: dict[str, Any]) -> list[int]:
    """One incarnation; the exit status of each rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(told["world"]):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                rank_main(folder, told, rank, port)
                status = 0
            except SystemExit as left:
                status = int(left.code or 0)
            except BaseException:
                traceback.print_exc()
            os._exit(status)
        ranks.append(pid)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]


if __name__ == "__main__":
    print(json.dumps([run_one(Path(sys.argv[1]), told) for told in json.load(sys.stdin)]))
