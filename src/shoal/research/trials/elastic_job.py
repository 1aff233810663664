"""A small elastic job with random disturbances, and the properties that must hold whatever happens to its workers.

The workers are processes of this machine, at most four at a time. The model counts in its own parameters how often each
sample was used, so the checks see what was trained, not what was logged.
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
from itertools import count as numbers_from
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
_TIMEOUT_SECONDS = 120.0
_LOSS_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class TrialTask:
    """The training of a trial: its size, the least seconds of a pass, and the width of the model.

    ``fingerprints`` adds a digest of the state to the log line of each step.
    """

    samples: int = 200
    epochs: int = 8
    batch: int = 16
    most_local: int = 6
    seconds_per_pass: float = 0.004
    hidden: int = 16
    fingerprints: bool = True

    def plan(self) -> TrainingPlan:
        """Return the trainer's plan."""
        return TrainingPlan(Epochs(self.samples, seed=5), self.epochs, self.batch, self.most_local)


class CountingModel:
    """A small network with one extra parameter per sample, which falls each time the sample is trained on."""

    def __init__(self, task: TrialTask, seed: int) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.module = nn.Sequential(nn.Linear(_FEATURES, task.hidden), nn.Tanh(), nn.Linear(task.hidden, 1))
        self._network = list(self.module.parameters())
        self.uses = nn.Parameter(torch.zeros(task.samples))
        self.module.register_parameter("uses", self.uses)
        rng = np.random.default_rng(11)
        self._inputs = torch.from_numpy(rng.standard_normal((task.samples, _FEATURES)).astype(np.float32))
        self._targets = torch.sin(self._inputs.sum(dim=1, keepdim=True))

    def loss(self, indices: Int64s) -> Tensor:
        """Return the mean squared error; its gradient also counts the samples."""
        chosen = torch.from_numpy(indices)
        error = nn.functional.mse_loss(self.module(self._inputs[chosen]), self._targets[chosen])
        counted = self.uses[chosen].mean()
        return error + counted - counted.detach()

    def optimizer(self, task: TrialTask) -> torch.optim.Optimizer:
        """Return SGD with momentum for the network; each use of a sample in a full step subtracts 1 from its count."""
        network: dict[str, Any] = {"params": self._network}
        counts: dict[str, Any] = {"params": [self.uses], "lr": float(task.batch), "momentum": 0.0}
        return torch.optim.SGD([network, counts], lr=0.05, momentum=0.9)

    def digest(self, optimizer: torch.optim.Optimizer) -> str:
        """Return a hash of parameters and momentum."""
        momentum = [
            each["momentum_buffer"] for each in optimizer.state.values() if each.get("momentum_buffer") is not None
        ]
        values = [*self.module.state_dict().values(), *momentum]
        return hashlib.sha256(b"".join(value.detach().numpy().tobytes() for value in values)).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class FixedTraining:
    """The same training on one undisturbed worker: its losses by step, and how often each sample was used."""

    losses: tuple[float, ...]
    uses: tuple[float, ...]


@lru_cache(maxsize=4)
def train_fixed(task: TrialTask) -> FixedTraining:
    """Train in a plain loop."""
    model = CountingModel(task, seed=0)
    optimizer, plan, cursor = model.optimizer(task), task.plan(), Cursor()
    losses = []
    while cursor.epoch < plan.epochs:
        optimizer.zero_grad()
        loss = model.loss(plan.samples.step(cursor, plan.batch).copy())
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(float(loss.detach()))
        cursor = plan.samples.after(cursor, plan.batch)
    return FixedTraining(tuple(losses), tuple(model.uses.tolist()))


def run_worker(worker: int, founder: bool, port: int, folder: str, task: TrialTask) -> None:
    """Run one worker in its own process; it logs a line for each step and one at its end."""
    torch.set_num_threads(1)
    model = CountingModel(task, seed=0 if founder else worker)
    optimizer = model.optimizer(task)

    def loss_on(indices: Int64s) -> Tensor:
        time.sleep(task.seconds_per_pass)
        return model.loss(indices)

    seat = WorkerConfig(worker, partial(connect_to, "127.0.0.1", port), patience=_TIMEOUT_SECONDS / 2)
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
    """A job's workers on this machine, with the part of the agent that starts, orders and kills them."""

    folder: Path
    task: TrialTask
    members: tuple[int, ...] = ()
    generation: int = 0
    workers: dict[int, ForkServerProcess] = field(default_factory=dict)
    killed: set[int] = field(default_factory=set)
    numbers: Iterator[int] = field(default_factory=numbers_from)
    store: Any = None

    def __post_init__(self) -> None:
        self.store = open_store("0")

    def start(self, count: int, *, founders: bool = False) -> tuple[int, ...]:
        """Start new workers, which wait until an order names them; returns their numbers."""
        started = []
        for _ in range(count):
            number = next(self.numbers)
            arguments = (number, founders, self.store.port, str(self.folder), self.task)
            self.workers[number] = _fork_server().Process(target=run_worker, args=arguments)
            self.workers[number].start()
            started.append(number)
        return tuple(started)

    def order(self, members: Sequence[int]) -> None:
        """Order that these workers form the group from now on."""
        self.generation += 1
        self.members = tuple(members)
        write_order(self.folder / "orders", Order(self.generation, self.members))

    def kill(self, worker: int) -> None:
        """Kill a worker as a node failure would, and order the others to continue, as its agent would."""
        self.killed.add(worker)
        pid = self.workers[worker].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        self.workers[worker].join()
        if worker in self.members:
            self.order([member for member in self.members if member != worker])

    def lines(self, worker: int) -> list[dict[str, Any]]:
        """Return the complete log lines of a worker."""
        path = self.folder / f"{worker}.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def trained(self) -> list[int]:
        """Return the live members that have logged a step and therefore hold trained state."""
        return [member for member in self.members if self.workers[member].is_alive() and self.lines(member)]

    def is_over(self) -> bool:
        """Whether every worker process has ended."""
        return not any(process.is_alive() for process in self.workers.values())

    def wait(self, seconds: float) -> bool:
        """Wait for all workers to end, then kill the remaining ones; returns whether all ended in time."""
        deadline = time.monotonic() + seconds
        for process in self.workers.values():
            process.join(max(0.0, deadline - time.monotonic()))
        in_time = self.is_over()
        for process in self.workers.values():
            process.kill()
            process.join()
        return in_time


def _fork_server() -> Any:
    context = get_context("forkserver")
    # An optimizer imports the compiler when it is made, which takes seconds in each process.
    context.set_forkserver_preload(["shoal.research.trials.elastic_job", "torch._dynamo"])
    return context


@contextmanager
def trial_job(task: TrialTask) -> Iterator[TrialJob]:
    """A job in a temporary folder; its workers are killed on exit."""
    with tempfile.TemporaryDirectory(prefix="shoal-trial-") as folder:
        made = TrialJob(Path(folder), task)
        try:
            yield made
        finally:
            made.wait(0.0)


def disturb(trial: TrialJob, rng: random.Random, count: int) -> list[str]:
    """Disturb a job ``count`` times; returns the actions taken."""
    actions = []
    founders = trial.start(rng.randint(1, _MOST_WORKERS), founders=True)
    trial.order(founders)
    _wait_for(lambda: bool(trial.trained()) or trial.is_over())
    for _ in range(count):
        time.sleep(rng.uniform(0.0, 0.15))
        if trial.is_over():
            break
        action = rng.choice(["resize", "resize", "burst", "kill"])
        if action == "kill":
            _kill_one(trial, rng)
        else:
            _resize(trial, rng)
        if action == "burst":
            for _ in range(rng.randint(1, 3)):
                time.sleep(rng.choice([0.0, rng.uniform(0.0, 0.03)]))
                _resize(trial, rng)
        actions.append(f"{action} -> {trial.members}")
    return actions


def _resize(trial: TrialJob, rng: random.Random) -> None:
    """Resize to a random number of workers, keeping at least one that holds trained state."""
    trained = trial.trained()
    if not trained:
        return
    size = rng.randint(1, _MOST_WORKERS)
    anchor = rng.choice(trained)
    others = [member for member in trial.members if member != anchor and trial.workers[member].is_alive()]
    staying = {anchor, *rng.sample(others, min(len(others), size - 1))}
    members = [member for member in trial.members if member in staying]
    trial.order([*members, *trial.start(size - len(members))])


def _kill_one(trial: TrialJob, rng: random.Random) -> None:
    trained = trial.trained()
    victims = [
        worker
        for worker, process in trial.workers.items()
        if process.is_alive() and any(other != worker for other in trained)
    ]
    if victims:
        trial.kill(rng.choice(victims))


def _wait_for(condition: Any) -> None:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)


def violations(ended: TrialJob, in_time: bool) -> list[str]:
    """Return the violated properties of a job that has ended, as sentences; empty if all hold."""
    found = [] if in_time else ["workers were still running at the time limit"]
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
                    found.append(f"worker {worker} counts uses of samples other than one per epoch")
                continue
            numbers.add(line["number"])
            digests.setdefault((line["number"], line["generation"]), set()).add(line["digest"])
            if not math.isclose(line["loss"], fixed.losses[line["number"]], rel_tol=_LOSS_TOLERANCE, abs_tol=1e-5):
                found.append(f"step {line['number']}: loss {line['loss']} and not {fixed.losses[line['number']]}")
    found += [f"replicas differ after step {key[0]}" for key, different in digests.items() if len(different) > 1]
    if not complete:
        found.append("no worker completed the training")
    if numbers != set(range(len(fixed.losses))):
        found.append(f"{len(numbers)} of {len(fixed.losses)} steps were done")
    return found


def run_trial(seed: int, task: TrialTask) -> tuple[list[str], list[str]]:
    """Run one randomly disturbed job; returns the actions taken and the violated properties."""
    with trial_job(task) as tried:
        actions = disturb(tried, random.Random(seed), count=6)
        in_time = tried.wait(_TIMEOUT_SECONDS)
        return actions, violations(tried, in_time)
