"""Two trainings on one GPU at once, by the driver's time-slicing and side by side (CUDA MPS): what each keeps.

A process for each training is started once, holds its model ready, and trains when it is told to; so a pair differs
from a training alone in nothing but the other one. ``python gpu_pairs.py KIND SIZE [tiny]`` is such a process.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import combinations_with_replacement
from pathlib import Path
from select import select
from typing import Any

_SIZES = ("small", "large")
_KINDS = ("resnet", "gpt")
_NAMES = [f"{kind} {size}" for kind in _KINDS for size in _SIZES]
_CONTROL = "nvidia-cuda-mps-control"
_PATIENCE_SECONDS = 90.0
_AHEAD_SECONDS = 0.2
_WARM_UP_SECONDS = 0.5
_AFTER_SECONDS = 0.2
"""For so long a training goes on when its time is over, so that the other is not alone before its own is."""


# ── in a worker ───────────────────────────────────────────────────────────────────────────────────────────────────


def work(kind: str, size: str, *, tiny: bool) -> None:
    """Say that all is ready, then train whenever a line on standard input says from when to when."""
    import torch
    from gpu_models import device, endless, settle, step, workload

    made = workload(kind, tiny=tiny)
    batch = getattr(made, size)
    model, optimizer = made.training()
    batches = endless(made.loader(batch))
    on_gpu = device().type == "cuda"
    for _ in range(2 if tiny else 20):
        step(model, optimizer, next(batches))
    settle()
    print(json.dumps({"ready": True, "batch": batch}), flush=True)
    for line in sys.stdin:
        begin, end = json.loads(line)
        time.sleep(max(0.0, begin - _WARM_UP_SECONDS - time.monotonic()))
        ends: list[float] = []
        flying: deque[Any] = deque()
        # Two steps are on their way at once, so that the GPU always has the next; none counts before it is done.
        while not ends or ends[-1] < end + _AFTER_SECONDS:
            step(model, optimizer, next(batches))
            if on_gpu:
                flying.append(torch.cuda.Event())
                flying[-1].record()
                if len(flying) <= 2:
                    continue
                flying.popleft().synchronize()
            ends.append(time.monotonic())
        settle()
        counted = [moment for moment in ends if begin <= moment < end]
        rate = batch * (len(counted) - 1) / (counted[-1] - counted[0]) if len(counted) > 2 else None
        print(json.dumps({"samples_per_s": rate, "steps": len(counted)}), flush=True)


# ── with the workers ──────────────────────────────────────────────────────────────────────────────────────────────


class Worker:
    """One training in a process of its own."""

    def __init__(self, name: str, tiny: bool, env: dict[str, str], log: Path) -> None:
        self.name, self._log = name, log
        arguments = [*name.split(), *(["tiny"] if tiny else [])]
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, __file__, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=env,
            )

    def hear(self) -> dict[str, Any]:
        """The next thing it says."""
        assert self.process.stdout is not None
        if not select([self.process.stdout], [], [], _PATIENCE_SECONDS)[0]:
            raise RuntimeError(f"{self.name} has said nothing for {_PATIENCE_SECONDS:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with {self.process.wait()}: {self._log.read_text()[-800:]}")
        found: dict[str, Any] = json.loads(line)
        return found

    def tell(self, begin: float, end: float) -> None:
        """Train from then to then."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([begin, end]) + "\n")
        self.process.stdin.flush()

    def let_go(self) -> None:
        """It may end."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()

    def end(self) -> None:
        """Wait until it has, or see to it."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=10)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@contextmanager
def workers(tiny: bool, env: dict[str, str], folder: Path) -> Iterator[dict[str, list[Worker]]]:
    """Two of each training, ready."""
    made = {name: [Worker(name, tiny, env, folder / f"{name} {i}.log") for i in range(2)] for name in _NAMES}
    everyone = [worker for pair in made.values() for worker in pair]
    try:
        for worker in everyone:
            worker.hear()
        yield made
    finally:
        for worker in everyone:
            worker.let_go()
        for worker in everyone:
            worker.end()


def _rates(chosen: list[Worker], seconds: float) -> list[float | None]:
    """Samples a second of each, at the same time; None of one that did too few steps to tell."""
    begin = time.monotonic() + _AHEAD_SECONDS + _WARM_UP_SECONDS
    for worker in chosen:
        worker.report(begin, begin + seconds)
    return [worker.hear()["samples_per_s"] for worker in chosen]


def _table(made: dict[str, list[Worker]], seconds: float) -> dict[str, Any]:
    """Samples a second alone, before and after all pairs; and of each pair the part of that which either keeps."""
    before = {name: _rates(pair[:1], seconds)[0] for name, pair in made.items()}
    together = {
        (one, other): _rates([made[one][0], made[other][1]], seconds)
        for one, other in combinations_with_replacement(_NAMES, 2)
    }
    after = {name: _rates(pair[:1], seconds)[0] for name, pair in made.items()}
    alone = {name: _between(before[name], after[name]) for name in made}
    pairs = [
        {
            "one": one,
            "other": other,
            "samples_per_s": rates,
            "kept": [_over(rate, alone[name]) for rate, name in zip(rates, (one, other), strict=True)],
        }
        for (one, other), rates in together.items()
    ]
    drift = {name: _over(after[name], before[name]) for name in made}
    return {"alone": alone, "alone_after_over_before": drift, "pairs": pairs}


def _between(one: float | None, other: float | None) -> float | None:
    return (one + other) / 2 if one and other else None


def _over(one: float | None, other: float | None) -> float | None:
    return one / other if one and other else None


# ── both ways ─────────────────────────────────────────────────────────────────────────────────────────────────────


def pairs(*, tiny: bool) -> dict[str, Any]:
    """The table by time-slicing and by MPS; a way that cannot be had is named with its reason."""
    seconds = 0.1 if tiny else 1.5
    found: dict[str, Any] = {"window_s": seconds}
    with tempfile.TemporaryDirectory(prefix="shoal-pairs-", ignore_cleanup_errors=True) as folder:
        for way, share in (("time-slicing", _plainly), ("mps", _side_by_side)):
            began = time.monotonic()
            place = Path(folder, way)
            place.mkdir()
            try:
                with share(place) as env, workers(tiny, env, place) as made:
                    if way == "mps":
                        _check_served(env)
                    found[way] = _table(made, seconds)
            except (OSError, RuntimeError, subprocess.SubprocessError) as error:
                found[way] = {"skipped": str(error)}
            print(
                f"  pairs by {way}: {time.monotonic() - began:.0f} s, {found[way].get('skipped', 'done')}", flush=True
            )
    return found


@contextmanager
def _plainly(folder: Path) -> Iterator[dict[str, str]]:
    # Nobody answers there: where the machine has a daemon of its own at the usual address, it is not asked.
    yield {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(folder)}


@contextmanager
def _side_by_side(folder: Path) -> Iterator[dict[str, str]]:
    """MPS for as long as this lasts, at an address of its own."""
    if shutil.which(_CONTROL) is None:
        raise RuntimeError(f"there is no {_CONTROL} on this machine")
    pipes, logs = folder / "pipes", folder / "logs"
    pipes.mkdir()
    logs.mkdir()
    env = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(logs)}
    daemon = subprocess.Popen([_CONTROL, "-f"], env=env, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10
        while not (pipes / "control").exists():
            if daemon.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"MPS did not start: {_logged(logs)}")
            time.sleep(0.1)
        try:
            yield env
        except RuntimeError as error:
            raise RuntimeError(f"{error}; MPS says: {_logged(logs)}") from error
    finally:
        with suppress(OSError, subprocess.SubprocessError):
            _asked(env, "quit")
        with suppress(subprocess.TimeoutExpired):
            daemon.wait(15)
        if daemon.poll() is None:
            daemon.kill()


def _check_served(env: dict[str, str]) -> None:
    if not _asked(env, "get_server_list"):
        raise RuntimeError("the workers run, but not under MPS: its daemon has no server")


def _asked(env: dict[str, str], question: str) -> str:
    done = subprocess.run(
        [_CONTROL], input=question + "\n", env=env, capture_output=True, text=True, timeout=15, check=False
    )
    return done.stdout.strip()


def _logged(logs: Path) -> str:
    return " ".join(path.read_text()[-400:] for path in sorted(logs.glob("*.log")))


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2], tiny="tiny" in sys.argv[3:])
