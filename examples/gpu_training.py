"""What the trainer library costs on a GPU and whether it holds there: overhead, checkpoints, noise scale.

Each part gives plain figures. Variants are measured in turns within one process and compared turn by turn, so that a
GPU that gets slower in between does not pass for a difference.
"""

import json
import math
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from gpu_models import KINDS, Workload, device, endless, loss_of, settle, step, workload
from torch import Tensor, nn

from shoal.perf.noise import NoiseEstimate, from_norms
from shoal.trainer import Adaptation, Scripted, Session, Stopped, Training
from shoal.trainer.environment import RankEnvironment
from shoal.trainer.torch.checkpointing import RunCheckpoints
from shoal.trainer.torch.gradients import Gradients
from shoal.trainer.torch.rank_exchange import RankExchange
from shoal.trainer.torch.state import TorchState

_FOREVER = 1_000_000
_NEVER_SECONDS = 1e9


def managed(folder: Path) -> Session:
    """A session as a job under Shoal has it, with a lease that does not end."""
    folder.mkdir(parents=True, exist_ok=True)
    lease = folder / "lease"
    lease.write_text(json.dumps({"until": time.monotonic() + _NEVER_SECONDS, "stopping": False}))
    return Session(
        RankEnvironment(job="measured", incarnation=1, folder=folder, progress=folder / "progress", lease=lease)
    )


# ── overhead ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Loop:
    """One way to train the same thing."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batches: Iterator[Any]
    told: Callable[[Any], None]
    session: Session

    def seconds(self, steps: int) -> float:
        """Of a step, over so many."""
        settle()
        began = time.perf_counter()
        for _ in range(steps):
            self.told(step(self.model, self.optimizer, next(self.batches)))
        settle()
        return (time.perf_counter() - began) / steps


def _loops(work: Workload, batch: int, folder: Path) -> dict[str, Loop]:
    loops = {}
    looks = Adaptation(schedule=Scripted(((0, batch),)))
    for name in ("plain", "plain again", "alone", "managed", "managed, looking"):
        model, optimizer = work.training()
        if name.startswith("plain"):
            loops[name] = Loop(
                model, optimizer, endless(work.loader(batch)), lambda _: None, Session(RankEnvironment())
            )
            continue
        session = Session(RankEnvironment()) if name == "alone" else managed(folder / name)
        adapt = looks if name.endswith("looking") else None
        run = Training(model, optimizer, session=session, adapt=adapt, save_every=_NEVER_SECONDS)
        loops[name] = Loop(model, optimizer, _fed(run, work, batch), run.loss, session)
    return loops


def _fed(run: Training, work: Workload, batch: int) -> Iterator[Any]:
    loader = work.loader(batch)
    for _ in run.epochs(_FOREVER):
        yield from run.batches(loader)


def overhead(*, tiny: bool) -> dict[str, Any]:
    """A step of a plain loop, and of the same under the library, without Shoal and with it."""
    found = {}
    for kind in KINDS:
        work = workload(kind, tiny=tiny)
        for size, batch in (("small", work.small), ("large", work.large)):
            with tempfile.TemporaryDirectory() as folder:
                loops = _loops(work, batch, Path(folder))
                found[f"{kind} {size}"] = {"batch": batch, **_in_turns(loops, tiny)}
                for loop in loops.values():
                    loop.session.close()
            print(f"  overhead of {kind} {size}: {found[f'{kind} {size}']['ratio']}", flush=True)
    return found


def _in_turns(loops: dict[str, Loop], tiny: bool) -> dict[str, Any]:
    turns, seconds = (3, 0.0) if tiny else (9, 0.25)
    for loop in loops.values():
        loop.seconds(3 if tiny else 15)
    steps = max(3, math.ceil(seconds / loops["plain"].seconds(3 if tiny else 15)))
    taken: dict[str, list[float]] = {name: [] for name in loops}
    for turn in range(turns):
        names = list(loops)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            taken[name].append(loops[name].seconds(steps))
    ratios = {
        name: [mine / plain for mine, plain in zip(taken[name], taken["plain"], strict=True)]
        for name in loops
        if name != "plain"
    }
    return {
        "steps_a_turn": steps,
        "turns": turns,
        "step_ms": {name: 1e3 * median(each) for name, each in taken.items()},
        "ratio": {name: round(median(each), 4) for name, each in ratios.items()},
        "ratio_quartiles": {name: _quartiles(each) for name, each in ratios.items()},
    }


def _quartiles(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    last = len(ordered) - 1
    return [ordered[round(0.25 * last)], ordered[round(0.75 * last)]]


# ── checkpoints ───────────────────────────────────────────────────────────────────────────────────────────────────


def checkpoints(*, tiny: bool) -> dict[str, Any]:
    """How long a checkpoint holds training up, when it is safe, and whether a run goes on from it as it would have."""
    found = {}
    for kind in KINDS:
        work = workload(kind, tiny=tiny)
        with tempfile.TemporaryDirectory() as folder:
            found[kind] = {**_saved(work, Path(folder)), **_resumed(work, Path(folder) / "runs", tiny)}
        print(f"  checkpoint of {kind}: {found[kind]}", flush=True)
    return found


def _saved(work: Workload, folder: Path) -> dict[str, Any]:
    model, optimizer = work.training()
    batches = endless(work.loader(work.small))
    staged, durable, resumed = [], [], []
    for number in range(1, 6):
        for _ in range(3):
            step(model, optimizer, next(batches))
        settle()
        saving = RunCheckpoints(folder, "measured", TorchState(model, optimizer, {}), RankExchange(), 0)
        began = time.perf_counter()
        saving.save(number, {"seen": number, "done": float(number)}, {})
        staged.append(time.perf_counter() - began)
        saving.settle()
        durable.append(time.perf_counter() - began)
        if saving.saved != number:
            raise RuntimeError("the checkpoint was not written; the log says why")
    held = sum(file.stat().st_size for file in folder.glob(f"{5:015d}/*"))
    for seed in range(1, 4):
        fresh, emptied = work.training(seed)
        settle()
        began = time.perf_counter()
        saving = RunCheckpoints(folder, "measured", TorchState(fresh, emptied, {}), RankExchange(), 0)
        if saving.resume() is None:
            raise RuntimeError("the checkpoint was not taken; the log says why")
        settle()
        resumed.append(time.perf_counter() - began)
    same = all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), fresh.state_dict().values(), strict=True))
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "bytes": held,
        "staged_s": median(staged),
        "durable_s": median(durable),
        "resumed_s": median(resumed),
        "state_identical": same,
    }


def _resumed(work: Workload, folder: Path, tiny: bool) -> dict[str, Any]:
    """A run stopped half-way and resumed, beside two that nobody stopped: those say how far runs differ anyway."""
    steps = 8 if tiny else 60
    found: dict[str, Any] = {"steps": steps, "stopped_after": steps // 2}
    for name, exact in (("deterministic", True), ("usual", False)):
        torch.use_deterministic_algorithms(exact, warn_only=True)
        torch.backends.cudnn.deterministic = exact
        one, other = (_losses(work, folder / f"{name} {each}", steps, 0) for each in "ab")
        before = _losses(work, folder / name, steps, 0, stop_at=steps // 2)
        # Another seed: whatever agrees with the run that was stopped comes from its checkpoint.
        after = _losses(work, folder / name, steps - len(before), 1)
        found[name] = {
            "stopped_at_step": len(before),
            "resumed_apart": apart_by(one, before + after),
            "repeated_apart": apart_by(one, other),
            "first_loss": one[0],
            "last_loss": one[-1],
        }
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = False
    return found


def _losses(work: Workload, folder: Path, steps: int, seed: int, stop_at: int | None = None) -> list[float]:
    """The loss of each step of a run, which leaves by itself once it was warned, as any does."""
    model, optimizer = work.training(seed)
    session = managed(folder)
    run = Training(model, optimizer, session=session)
    losses: list[Tensor] = []
    loader = work.loader(work.small)
    try:
        for _ in run.epochs(_FOREVER):
            for batch in run.batches(loader):
                losses.append(step(model, optimizer, batch))
                if len(losses) == stop_at:
                    signal.raise_signal(signal.SIGTERM)
                if len(losses) == steps:
                    return [float(loss) for loss in losses]
    except Stopped:
        return [float(loss) for loss in losses]
    finally:
        session.close()
    raise RuntimeError("the run ended before its steps were done")


def apart_by(some: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """How far the losses of two runs differ, as a part of the loss: at most, at the end, and in how many steps not."""
    differences = [abs(a - b) / abs(a) for a, b in zip(some, others, strict=True)]
    return {"most": max(differences), "steps_identical": sum(d == 0 for d in differences), "last": differences[-1]}


# ── noise scale ───────────────────────────────────────────────────────────────────────────────────────────────────

_PASSES = 8


def noise(*, tiny: bool) -> dict[str, Any]:
    """The noise scale by progress, told from passes and from two steps in a row; and what a look costs."""
    found = {}
    for kind in KINDS:
        work = workload(kind, tiny=tiny)
        found[kind] = {"points": _by_progress(work, tiny), "look": _look_cost(work, tiny)}
        print(f"  noise scale of {kind}: {found[kind]}", flush=True)
    return found


def _by_progress(work: Workload, tiny: bool) -> list[dict[str, float | None]]:
    model, optimizer = work.training()
    passed = work.small if tiny else work.large // 16
    batch = passed * _PASSES
    passes, whole = endless(work.loader(passed)), endless(work.loader(batch))
    gradients = Gradients(model, optimizer, 1)
    points, done = [], 0
    for until in (2, 4) if tiny else (20, 60, 150, 300, 600):
        while done < until:
            step(model, optimizer, next(whole))
            done += 1
        together, apart, losses = [], [], []
        for _ in range(4 if tiny else 30):
            gradients.begin(look=True)
            loss, estimate = _pass_by_pass(model, optimizer, passes, passed)
            gradients.before_step()
            optimizer.step()
            done += 1
            losses.append(loss)
            together.append(estimate)
            if (pair := gradients.compared(batch)) is not None:
                apart.append(pair)
        points.append(
            {
                "steps": done,
                "samples": done * batch,
                "loss": mean(losses),
                "passes": _scale(together),
                "passes_halves_apart": _half_apart(together),
                "pairs": _scale(apart),
                "pairs_halves_apart": _half_apart(apart),
                "batch": batch,
            }
        )
    return points


def _pass_by_pass(
    model: nn.Module, optimizer: torch.optim.Optimizer, passes: Iterator[Any], size: int
) -> tuple[float, NoiseEstimate]:
    """One step's gradient as the mean of its passes', left where the optimizer looks for it; and how they differ."""
    parameters = list(model.parameters())
    roots = _roots(optimizer, parameters)
    total = [torch.zeros_like(parameter) for parameter in parameters]
    squares, loss = torch.zeros((), device=device()), torch.zeros((), device=device())
    for _ in range(_PASSES):
        optimizer.zero_grad()
        of_pass = loss_of(model, next(passes))
        torch.autograd.backward(of_pass)
        mine = [parameter.grad for parameter in parameters]
        torch._foreach_add_(total, mine, alpha=1 / _PASSES)
        squares += _square(torch._foreach_div(mine, roots) if roots else mine) / _PASSES
        loss += of_pass.detach() / _PASSES
    for parameter, gradient in zip(parameters, total, strict=True):
        parameter.grad = gradient
    whole = _square(torch._foreach_div(total, roots) if roots else total)
    return float(loss), from_norms(float(squares), float(whole), size, _PASSES)


def _roots(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> list[Tensor]:
    """What Adam divides gradients by, before this step's are in it; nothing behind SGD."""
    states = [optimizer.state.get(parameter, {}) for parameter in parameters]
    if not all("exp_avg_sq" in state for state in states):
        return []
    group = optimizer.param_groups[0]
    return [
        (state["exp_avg_sq"] / (1 - group["betas"][1] ** float(state["step"]))).sqrt() + group["eps"]
        for state in states
    ]


def _square(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack(torch._foreach_norm(list(tensors))).square().sum()


def _scale(estimates: Sequence[NoiseEstimate]) -> float | None:
    """φ in samples; None where no gradient shows above the noise."""
    square, variance = mean(each.square for each in estimates), mean(each.variance for each in estimates)
    return variance / square if square > 0 else None


def _half_apart(estimates: Sequence[NoiseEstimate]) -> float | None:
    """By what factor the two halves of what it was told from differ: how far it may be trusted."""
    one, other = _scale(estimates[::2]), _scale(estimates[1::2])
    return max(one, other) / min(one, other) if one and other and min(one, other) > 0 else None


def _look_cost(work: Workload, tiny: bool) -> dict[str, dict[str, float]]:
    """A step whose gradients are looked at beside one whose are not, in turns of some steps each."""
    found = {}
    for size, batch in (("small", work.small), ("large", work.large)):
        model, optimizer = work.training()
        batches = endless(work.loader(batch))
        gradients = Gradients(model, optimizer, 1)
        steps, turns = (2, 2) if tiny else (12, 9)
        taken: dict[bool, list[float]] = {False: [], True: []}
        for turn in range(turns + 1):
            for looking in (False, True):
                settle()
                began = time.perf_counter()
                for _ in range(steps):
                    gradients.begin(look=looking)
                    optimizer.zero_grad()
                    torch.autograd.backward(loss_of(model, next(batches)))
                    gradients.before_step()
                    optimizer.step()
                settle()
                if turn:  # the first is a rehearsal
                    taken[looking].append((time.perf_counter() - began) / steps)
        extra = [with_it - without for with_it, without in zip(taken[True], taken[False], strict=True)]
        spent = gradients.spent / (steps * (turns + 1))
        found[size] = {"step_ms": 1e3 * median(taken[False]), "look_ms": 1e3 * median(extra), "counted_ms": 1e3 * spent}
    return found
