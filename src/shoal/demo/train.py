"""A minimal training job: data-parallel softmax regression in numpy, with checkpoints.

Run by Shoal once per GPU: ranks average their gradients over a socket at the rendezvous address; rank 0 writes the
checkpoint and the progress. After a warning (SIGTERM) every rank leaves at the same step. A step is extended to the
time it would take on a GPU. Usage: python -m shoal.demo.train STEPS SECONDS_PER_STEP.
"""

import os
import socket
import sys
import time

import numpy as np

from shoal.core.arrays import Floats
from shoal.trainer.numpy_training import ArrayTraining

_CLASSES, _FEATURES, _BATCH, _RATE = 10, 64, 128, 0.5
_PRINT_EVERY = 20


class AllReduce:
    """Sums arrays over the ranks of a job, through rank 0."""

    def __init__(self) -> None:
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._links: list[socket.socket] = []
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        if self.world == 1:
            return
        if self.rank == 0:
            with socket.create_server(address, reuse_port=False) as listener:
                self._links = [listener.accept()[0] for _ in range(self.world - 1)]
        else:
            self._links = [_connect(address)]
        for link in self._links:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def sum(self, mine: Floats) -> Floats:
        """Return the sum over all ranks, the same on every rank."""
        if self.rank == 0:
            total = sum((_receive(link, mine.shape) for link in self._links), start=mine)
            for link in self._links:
                link.sendall(total.tobytes())
            return total
        self._links[0].sendall(mine.tobytes())
        return _receive(self._links[0], mine.shape)


def _connect(address: tuple[str, int]) -> socket.socket:
    deadline = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection(address, timeout=30)
        except ConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _receive(link: socket.socket, shape: tuple[int, ...]) -> Floats:
    data = bytearray()
    length = 8 * int(np.prod(shape))
    while len(data) < length:
        piece = link.recv(length - len(data))
        if not piece:
            raise ConnectionError("another rank has gone")
        data += piece
    return np.frombuffer(bytes(data)).reshape(shape)


def _gradient(weights: Floats, random: np.random.Generator, truth: Floats) -> tuple[Floats, float]:
    """Gradient of the cross entropy on a new batch, and its value."""
    inputs = random.standard_normal((_BATCH, _FEATURES))
    labels = (inputs @ truth).argmax(axis=1)
    scores = inputs @ weights
    scores -= scores.max(axis=1, keepdims=True)
    probabilities = np.exp(scores)
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    loss = float(-np.log(probabilities[np.arange(_BATCH), labels] + 1e-12).mean())
    probabilities[np.arange(_BATCH), labels] -= 1.0
    return inputs.T @ probabilities / _BATCH, loss


def main(steps: int, seconds_per_step: float) -> int:
    """Train for ``steps`` steps, from the checkpoint if there is one."""
    truth = np.random.default_rng(7).standard_normal((_FEATURES, _CLASSES))
    weights = np.zeros((_FEATURES, _CLASSES))
    run = ArrayTraining({"weights": weights}, steps)
    ranks = AllReduce()
    print(f"rank {ranks.rank} of {ranks.world}: training from step {run.step} of {steps}", flush=True)
    for step in run.steps():
        due = time.monotonic() + seconds_per_step
        gradient, loss = _gradient(weights, np.random.default_rng([step, ranks.rank]), truth)
        # Warnings are summed with the gradient, so that all ranks leave after the same step.
        total = ranks.sum(np.concatenate([gradient.ravel(), [loss], run.votes()]))
        weights -= _RATE * total[:-3].reshape(weights.shape) / ranks.world
        run.apply_votes(total[-2], total[-1], loss=total[-3] / ranks.world)
        if ranks.rank == 0 and (step + 1) % _PRINT_EVERY == 0:
            print(f"step {step + 1}: loss {total[-3] / ranks.world:.4f}", flush=True)
        time.sleep(max(0.0, due - time.monotonic()))
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2])))
