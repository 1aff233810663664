"""A small job whose workers are ordered about at random, and what must hold of it whatever happens to them.

The workers are processes of this machine, up to four at a time. The model counts in its own parameters how often each
sample was used, so what is checked is what was trained, not what was logged.
"""

import hashlib
import json
import math
import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from itertools import count
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shoal.core.arrays import Int64s
from shoal.trainer.elastic.group import WorkerConfig, connect_to
from shoal.trainer.elastic.orders import FileOrders, Order, write_order
from shoal.trainer.elastic.store import open_store
from shoal.trainer.elastic.training import Elastic, TrainingPlan
from shoal.trainer.samples import Cursor, Epochs

_FEATURES = 8
_MOST_WORKERS = 4
_PATIENCE_SECONDS = 120.0
_LOSS_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class TrialTask:
    """What a trial trains: how much, how long a pass takes at least, how large a model; and whether the state after
    each step is to be told apart from any other."""

    samples: int = 200
    epochs: int = 8
    batch: int = 16
    most_local: int = 6
    seconds_per_pass: float = 0.004
    hidden: int = 16
    fingerprints: bool = True

    def plan(self) -> TrainingPlan:
        """As the trainer is told."""
        return TrainingPlan(Epochs(self.samples, seed=5), self.epochs, self.batch, self.most_local)


class Tally:
    """A small network, and for each sample a number that goes down each time the sample is trained on."""

    def __init__(self, task: TrialTask, seed: int) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.module = nn.Sequential(nn.Linear(_FEATURES, task.hidden), nn.Tanh(), nn.Linear(task.hidden, 1))
        self._network = list(self.module.parameters())
        self.uses = nn.Parameter(torch.zeros(task.samples))
        self.module.register_parameter("uses", self.uses)
        chance = np.random.default_rng(11)
        self._inputs = torch.from_numpy(chance.standard_normal((task.samples, _FEATURES)).astype(np.float32))
        self._targets = torch.sin(self._inputs.sum(dim=1, keepdim=True))

    def loss(self, indices: Int64s) -> Tensor:
        """The mean squared error; its gradient also counts the samples."""
        chosen = torch.from_numpy(indices)
        error = nn.functional.mse_loss(self.module(self._inputs[chosen]), self._targets[chosen])
        counted = self.uses[chosen].mean()
        return error + counted - counted.detach()

    def optimizer(self, task: TrialTask) -> torch.optim.Optimizer:
        """Momentum for the network; for the tally plain subtraction, of 1 for each use in a full step."""
        network: dict[str, Any] = {"params": self._network}
        tally: dict[str, Any] = {"params": [self.uses], "lr": float(task.batch), "momentum": 0.0}
        return torch.optim.SGD([network, tally], lr=0.05, momentum=0.9)

    def digest(self, optimizer: torch.optim.Optimizer) -> str:
        """A fingerprint of everything that is trained."""
        momentum = [
            each["momentum_buffer"] for each in optimizer.state.values() if each.get("momentum_buffer") is not None
        ]
        values = [*self.module.state_dict().values(), *momentum]
        return hashlib.sha256(b"".join(value.detach().numpy().tobytes() for value in values)).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same training on a single worker that nobody disturbs: its losses, and how often each sample was used."""

    losses: tuple[float, ...]
    uses: tuple[float, ...]


@lru_cache(maxsize=4)
def train_fixed(task: TrialTask) -> Fixed:
    """Train in a plain loop."""
    model = Tally(task, seed=0)
    optimizer, plan, cursor = model.optimizer(task), task.plan(), Cursor()
    losses = []
    while cursor.epoch < plan.epochs:
        optimizer.zero_grad()
        loss = model.loss(plan.samples.step(cursor, plan.batch).copy())
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(float(loss.detach()))
        cursor = plan.samples.after(cursor, plan.batch)
    return Fixed(tuple(losses), tuple(model.uses.tolist()))


def work(worker: int, founder: bool, port: int, folder: str, task: TrialTask) -> None:
    """One worker, in a process of its own; it writes a line for each step and one when it ends."""
    torch.set_num_threads(1)
    model = Tally(task, seed=0 if founder else worker)
    optimizer = model.optimizer(task)

    def loss_on(indices: Int64s) -> Tensor:
        time.sleep(task.seconds_per_pass)
        return model.loss(indices)

    seat = WorkerConfig(worker, partial(connect_to, "127.0.0.1", port), patience=_PATIENCE_SECONDS / 2)
    elastic = Elastic(
        model.module, optimizer, loss_on, task.plan(), seat=seat, orders=FileOrders(Path(folder) / "orders")
    )
    with (Path(folder) / f"{worker}.jsonl").open("w", buffering=1) as log:
        for step in elastic.steps():
            digest = model.digest(optimizer) if task.fingerprints else ""
            line = {**asdict(step), "at": time.monotonic(), "digest": digest}
            log.write(json.dumps(line) + "\n")
        uses = model.uses.tolist() if elastic.complete else None
        log.write(json.dumps({"ended": True, "complete": elastic.complete, "uses": uses}) + "\n")


@dataclass(slots=True)
class TrialJob:
    """A job's workers on this machine, and whoever orders them about: what an agent does for a job."""

    folder: Path
    task: TrialTask
    members: tuple[int, ...] = ()
    generation: int = 0
    workers: dict[int, ForkServerProcess] = field(default_factory=dict)
    killed: set[int] = field(default_factory=set)
    numbers: Iterator[int] = field(default_factory=count)
    store: Any = None

    def __post_init__(self) -> None:
        self.store = open_store("0")

    def start(self, many: int, *, founders: bool = False) -> tuple[int, ...]:
        """Start new workers; their numbers. They wait until an order names them."""
        started = []
        for _ in range(many):
            number = next(self.numbers)
            told = (number, founders, self.store.port, str(self.folder), self.task)
            self.workers[number] = _processes().Process(target=work, args=told)
            self.workers[number].start()
            started.append(number)
        return tuple(started)

    def order(self, members: Sequence[int]) -> None:
        """From now on these."""
        self.generation += 1
        self.members = tuple(members)
        write_order(self.folder / "orders", Order(self.generation, self.members))

    def kill(self, worker: int) -> None:
        """Kill a worker as its node would, and tell the rest, as its agent would."""
        self.killed.add(worker)
        pid = self.workers[worker].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        self.workers[worker].join()
        if worker in self.members:
            self.order([member for member in self.members if member != worker])

    def lines(self, worker: int) -> list[dict[str, Any]]:
        """What a worker has written so far, in whole lines."""
        path = self.folder / f"{worker}.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def trained(self) -> list[int]:
        """The members that are known to have trained, and so hold what was trained."""
        return [member for member in self.members if self.workers[member].is_alive() and self.lines(member)]

    def is_over(self) -> bool:
        """Whether every worker that was not killed has ended."""
        return not any(process.is_alive() for process in self.workers.values())

    def wait(self, seconds: float) -> bool:
        """Wait for the end; whether it came in time. What is left is killed."""
        deadline = time.monotonic() + seconds
        for process in self.workers.values():
            process.join(max(0.0, deadline - time.monotonic()))
        in_time = self.is_over()
        for process in self.workers.values():
            process.kill()
            process.join()
        return in_time


def _processes() -> Any:
    context = get_context("forkserver")
    # An optimizer imports the compiler when it is made, which takes seconds in each process.
    context.set_forkserver_preload(["shoal.research.trials.elastic_job", "torch._dynamo"])
    return context


@contextmanager
def job(task: TrialTask) -> Iterator[TrialJob]:
    """A job in a folder that is removed afterwards; no worker outlives it."""
    with tempfile.TemporaryDirectory(prefix="shoal-trial-") as folder:
        made = TrialJob(Path(folder), task)
        try:
            yield made
        finally:
            made.wait(0.0)


def disturb(disturbed: TrialJob, chance: random.Random, many: int) -> list[str]:
    """Order a job about so many times; what was done."""
    story = []
    founders = disturbed.start(chance.randint(1, _MOST_WORKERS), founders=True)
    disturbed.order(founders)
    _until(lambda: bool(disturbed.trained()) or disturbed.is_over())
    for _ in range(many):
        time.sleep(chance.uniform(0.0, 0.15))
        if disturbed.is_over():
            break
        what = chance.choice(["resize", "resize", "burst", "kill"])
        if what == "kill":
            _kill_one(disturbed, chance)
        else:
            _resize(disturbed, chance)
        if what == "burst":
            for _ in range(chance.randint(1, 3)):
                time.sleep(chance.choice([0.0, chance.uniform(0.0, 0.03)]))
                _resize(disturbed, chance)
        story.append(f"{what} -> {disturbed.members}")
    return story


def _resize(disturbed: TrialJob, chance: random.Random) -> None:
    """To a random number of workers; one that has trained stays, for nobody else has what was trained."""
    trained = disturbed.trained()
    if not trained:
        return
    size = chance.randint(1, _MOST_WORKERS)
    anchor = chance.choice(trained)
    others = [member for member in disturbed.members if member != anchor and disturbed.workers[member].is_alive()]
    staying = {anchor, *chance.sample(others, min(len(others), size - 1))}
    members = [member for member in disturbed.members if member in staying]
    disturbed.order([*members, *disturbed.start(size - len(members))])


def _kill_one(disturbed: TrialJob, chance: random.Random) -> None:
    trained = disturbed.trained()
    victims = [
        worker
        for worker, process in disturbed.workers.items()
        if process.is_alive() and any(other != worker for other in trained)
    ]
    if victims:
        disturbed.kill(chance.choice(victims))


def _until(condition: Any) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)


def faults(ended: TrialJob, in_time: bool) -> list[str]:
    """What does not hold of a job that has ended, in sentences; nothing where all is well."""
    found = [] if in_time else ["workers were still there when the time was up"]
    fixed = train_fixed(ended.task)
    digests: dict[tuple[int, int], set[str]] = {}
    numbers: set[int] = set()
    complete = 0
    for worker, process in ended.workers.items():
        lines = ended.lines(worker)
        if worker not in ended.killed and process.exitcode != 0:
            found.append(f"worker {worker} ended with {process.exitcode}")
        for line in lines:
            if "ended" in line:
                complete += line["complete"]
                if line["complete"] and not np.allclose(line["uses"], fixed.uses, atol=1e-2):
                    found.append(f"worker {worker} counts other uses of samples than one each epoch")
                continue
            numbers.add(line["number"])
            digests.setdefault((line["number"], line["generation"]), set()).add(line["digest"])
            if not math.isclose(line["loss"], fixed.losses[line["number"]], rel_tol=_LOSS_TOLERANCE, abs_tol=1e-5):
                found.append(f"step {line['number']}: loss {line['loss']} and not {fixed.losses[line['number']]}")
    found += [f"replicas differ after step {key[0]}" for key, different in digests.items() if len(different) > 1]
    if not complete:
        found.append("no worker came to the end")
    if numbers != set(range(len(fixed.losses))):
        found.append(f"{len(numbers)} of {len(fixed.losses)} steps were done")
    return found


def try_sequence(seed: int, task: TrialTask) -> tuple[list[str], list[str]]:
    """One job disturbed at random: what was done to it, and what did not hold."""
    with job(task) as tried:
        story = disturb(tried, random.Random(seed), many=6)
        in_time = tried.wait(_PATIENCE_SECONDS)
        return story, faults(tried, in_time)
