"""Process groups that are built in the background of training, kept for reuse, and closed in the background.

A group is built only once all members have announced that they are ready; from then on every member builds it. Until
then it can be cancelled at any time at no cost.

References: Hwang et al., NSDI 2021, §4.3 (concurrent expansion, cancelling, a worker leaves only when all know).
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store, TCPStore

from shoal.core.errors import InputError, ShoalError
from shoal.trainer.elastic.orders import Order, whole_number
from shoal.trainer.elastic.rules import Readiness, reusable
from shoal.trainer.elastic.store import SECRET, open_store
from shoal.trainer.elastic.store_client import WorkerStore

_LOG = logging.getLogger("shoal.trainer")

_CPU = torch.device("cpu")
_PATIENCE_SECONDS = 600.0
_FIRST_LOOK_SECONDS, _LAST_LOOK_SECONDS = 0.002, 0.05
_NCCL_LOOK_SECONDS = 5e-5
_MOST_ERROR_CHARACTERS = 200
_BUILD, _CALLED_OFF = "build", "called off"


class GroupBroken(ShoalError):
    """A collective failed because a member died or did not answer in time; the group can no longer be used."""


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """A worker's number in its job, its connection to the job's store, and its device.

    Workers on GPUs use NCCL, others gloo. ``patience`` is how many seconds a worker waits for another that may be
    alive: in a collective, for a group to be built, for an order after a failure.
    """

    worker: int
    connect: Callable[[], Store]
    device: torch.device = _CPU
    patience: float = _PATIENCE_SECONDS

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "WorkerConfig":
        """Return the configuration from an agent's variables, else of a rank in a fixed gang, else of a single worker.

        Raises ``InputError`` naming a variable that is wrong.
        """
        device = _CPU
        if torch.cuda.is_available():
            device = torch.device("cuda", whole_number(environ, "LOCAL_RANK", 0))
        if "SHOAL_STORE" in environ:
            host, _, port = environ["SHOAL_STORE"].rpartition(":")
            if not host or not port.isdecimal():
                raise InputError("SHOAL_STORE", environ["SHOAL_STORE"], "must be HOST:PORT of the job's store")
            secret = environ.get(SECRET, "")
            return cls(whole_number(environ, "SHOAL_WORKER"), partial(connect_to, host, int(port), secret), device)
        if whole_number(environ, "WORLD_SIZE", 1) > 1:
            return cls(whole_number(environ, "RANK"), _gang_store(environ), device)
        own = dist.HashStore()
        return cls(0, lambda: own, device)


def connect_to(host: str, port: int, secret: str = "") -> Store:
    """A new connection to a job's store."""
    return WorkerStore(host, port, secret, timedelta(seconds=_PATIENCE_SECONDS))


def _gang_store(environ: Mapping[str, str]) -> Callable[[], Store]:
    """Store hosted by the first rank, as in torch's own rendezvous, or by torchrun."""
    host, port = environ.get("MASTER_ADDR", ""), whole_number(environ, "MASTER_PORT")
    if not host:
        raise InputError("MASTER_ADDR", None, "must name the host of the first rank")
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return partial(TCPStore, host, port, is_master=False, timeout=timedelta(seconds=_PATIENCE_SECONDS))
    hosted = open_store(str(port), host) if environ["RANK"] == "0" else None

    def connect() -> Store:
        return connect_to(host, port if hosted is None else hosted.port)

    return connect


def generation_store(store: Store, generation: int) -> Store:
    """The part of a store that belongs to one generation."""
    return PrefixStore(f"generation/{generation}", store)


class WorkerGroup:
    """A process group of some workers of a job, ranked in the order of ``members``.

    ``built_for`` is the generation it was built for, which identifies it; later generations may reuse it.
    """

    def __init__(self, seat: WorkerConfig, order: Order, connection: Store) -> None:
        self._connection = connection  # torch calls its methods as long as the group lives, and does not keep it alive
        self.members = order.members
        self.built_for = order.generation
        self.rank = order.members.index(seat.worker)
        self._on_gpu = seat.device.type == "cuda"
        self._patience = seat.patience
        store = PrefixStore("group", generation_store(connection, order.generation))
        self._group: Any = _make(seat, store, self.rank, self.world)
        # The first collective sets up connections that later ones use.
        self.add_up(torch.zeros(1, device=seat.device))

    @property
    def world(self) -> int:
        """Number of workers."""
        return len(self.members)

    def add_up(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all ranks."""
        self._finish(lambda: self._group.allreduce([tensor]))

    def send(self, tensor: Tensor, rank: int) -> None:
        """Send a tensor to one rank, which receives it."""
        self._finish(lambda: self._group.send([tensor], rank, 0))

    def receive(self, tensor: Tensor, rank: int) -> None:
        """Fill a tensor with the one that a rank sends."""
        self._finish(lambda: self._group.recv([tensor], rank, 0))

    def close(self) -> None:
        """Close all connections; members still in a collective see the group break. Takes tens of milliseconds."""
        group, self._group = self._group, None
        if group is not None and self._on_gpu:
            group.abort()

    def _finish(self, begin: Any) -> None:
        try:
            work = begin()
            if self._on_gpu:
                self._watch(work)
            work.wait()
        except RuntimeError as error:
            raise GroupBroken(f"the group of generation {self.built_for}: {error}") from error

    def _watch(self, work: Any) -> None:
        """Wait on the host: NCCL's own wait only orders the stream and would not detect a dead peer."""
        deadline = time.monotonic() + self._patience
        while not work.is_completed():
            if time.monotonic() > deadline:
                self._group.abort()
                raise RuntimeError(f"a collective took more than {self._patience:g} s")
            time.sleep(_NCCL_LOOK_SECONDS)


def _make(seat: WorkerConfig, store: Store, rank: int, world: int) -> Any:
    patience = timedelta(seconds=seat.patience)
    if seat.device.type == "cpu":
        return dist.ProcessGroupGloo(store, rank, world, patience)
    # The current CUDA device is per thread, and groups are built outside the training thread.
    torch.cuda.set_device(seat.device)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = patience
    return dist.ProcessGroupNCCL(store, rank, world, options)


@dataclass(frozen=True, slots=True)
class Built:
    """A built group, and whether any member is training in another group meanwhile."""

    group: WorkerGroup
    stepping: bool


class IdleThreads:
    """Reusable background threads; a task that hangs blocks only its own thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._threads = self._idle = 0
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.do(lambda: None)

    def do(self, task: Callable[[], None]) -> None:
        """Run a task in another thread."""
        self._tasks.put(task)
        with self._changed:
            if self._idle:
                self._idle -= 1
                return
            self._threads += 1
        threading.Thread(target=self._serve, name="shoal-threads", daemon=True).start()

    def rest(self, seconds: float) -> None:
        """Wait until all tasks are done, ``seconds`` at most."""
        with self._changed:
            self._changed.wait_for(lambda: self._idle == self._threads, seconds)

    def _serve(self) -> None:
        while True:
            self._tasks.get()()
            with self._changed:
                self._idle += 1
                self._changed.notify_all()


class Builder:
    """Builds the group of an order, or reuses a kept one, in the background with a store connection of its own.

    ``stepping`` says whether this worker trains in another group meanwhile.
    """

    def __init__(
        self, seat: WorkerConfig, order: Order, kept: WorkerGroup | None, threads: IdleThreads, *, stepping: bool
    ) -> None:
        self.order = order
        self.stepping = stepping
        self._seat, self._kept, self._threads = seat, kept, threads
        self._withdrawn = threading.Event()
        self._lock = threading.Lock()
        self._unwanted = False
        self._built: Built | None = None
        self._ended = threading.Event()
        threads.do(self._run)

    @property
    def built(self) -> Built | None:
        """The group once it is built, else None."""
        return self._built

    @property
    def ended(self) -> bool:
        """Whether building has finished, successfully or not."""
        return self._ended.is_set()

    def withdraw(self) -> None:
        """Cancel, unless all members are ready and some are building already."""
        self._withdrawn.set()

    def discard(self) -> None:
        """Cancel, and close the group if it is built all the same."""
        self.withdraw()
        with self._lock:
            self._unwanted = True
            built, self._built = self._built, None
        self._drop(built)

    def _run(self) -> None:
        built = None
        try:
            built = self._build()
        except (RuntimeError, GroupBroken) as error:
            # Training continues in the present group; if a member died during the build, a newer order follows.
            _LOG.warning("generation %d was not built: %s", self.order.generation, str(error)[:_MOST_ERROR_CHARACTERS])
        with self._lock:
            if not self._unwanted:
                self._built, built = built, None
        self._ended.set()
        self._drop(built)

    def _build(self) -> Built | None:
        connection = self._seat.connect()
        store = generation_store(connection, self.order.generation)
        mine = Readiness(self._kept.built_for if self._kept is not None else 0, self.stepping)
        store.set(f"ready/{self._seat.worker}", mine.to_text())
        names = [f"ready/{member}" for member in self.order.members]
        self._wait_for(store, names)
        # The first member to get here decides for all: once set to build, every member builds, even one that withdrew.
        choice = _CALLED_OFF if self._withdrawn.is_set() else _BUILD
        if store.compare_set("fate", "", choice) != _BUILD.encode():
            return None
        members = [Readiness.from_text(store.get(name).decode()) for name in names]
        found = self._kept if reusable(members) else None
        group = found or WorkerGroup(self._seat, self.order, connection)
        return Built(group, any(member.stepping for member in members))

    def _wait_for(self, store: Store, names: list[str]) -> None:
        pause = _FIRST_LOOK_SECONDS
        while not store.check(names) and not self._withdrawn.wait(pause):
            pause = min(1.5 * pause, _LAST_LOOK_SECONDS)

    def _drop(self, built: Built | None) -> None:
        if built is not None and built.group is not self._kept:
            self._threads.do(built.group.close)
