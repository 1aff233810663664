"""Pollux's two models on a real GPU: figures 2 and 3 of the paper, made smaller (one GPU); results in docs/gpu.md.

    python examples/gpu_goodput.py --out goodput.json           # about three minutes on an H200; --tiny: without a GPU
    python examples/gpu_goodput.py --table goodput.json

- Throughput (figure 3, bottom): the time of a step by batch size, with and without gradient accumulation. The model is
  fitted to every second batch size without accumulation; the other points are held out.
- Efficiency (figure 2, bottom): at moments of one training the noise scale φ is measured at several batch sizes. The
  efficiency predicted from φ at the middle one is compared with the one from φ at each other.
- Progress (figure 2, top): validation loss at equal statistical epochs, for batches of M₀, 4 M₀ and 16 M₀.
"""

import argparse
import copy
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from gpu_models import KINDS, Resident, Workload, device, endless, loss_of, settle, workload
from torch import Tensor
from torch.utils.data import DataLoader

from shoal.perf.fit import Observation, fitted
from shoal.perf.goodput import efficiency, iteration_seconds
from shoal.perf.noise import NoiseEstimate, NoiseScale, from_norms
from shoal.trainer.learning_rate import RULES, BatchScaling

_DECAY = 0.9
"""Weight of the earlier measurements of φ, one every `_MEASURE_EVERY` steps."""
_MEASURE_EVERY = 8
_PASSES = 4
"""Gradients that are compared for one estimate of φ."""
_RULE = {"resnet": "adascale", "gpt": "sqrt"}
"""The rule for the learning rate: AdaScale for SGD, the square root for AdamW."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured of a workload.

    ``initial`` is M₀, ``samples`` those of one training at M₀, ``held_out`` those for validation, ``seconds`` the time
    for one point of the throughput.
    """

    initial: int
    batches: tuple[int, ...]
    most_local: int
    samples: int
    held_out: int
    seconds: float


def sizes(kind: str, *, tiny: bool) -> Sizes:
    """Return the sizes for a kind of workload."""
    if tiny:
        return Sizes(8, (8, 16, 32), 16, 96, 32, 0.05)
    if kind == "resnet":
        return Sizes(128, (64, 128, 256, 512, 1024, 2048, 4096), 1024, 100_000, 4_000, 0.4)
    return Sizes(32, (8, 16, 32, 64, 128, 256, 512), 128, 12_000, 1_000, 0.4)


class Trainee:
    """A model with its optimizer and data; the last ``held_out`` samples are for validation."""

    def __init__(self, work: Workload, held_out: int, *, seed: int = 0) -> None:
        self.kind, self._work = work.kind, work
        self.model, self.optimizer = work.training(seed)
        self._all, self._held_out = work.data, held_out
        self._rates = [group["lr"] for group in self.optimizer.param_groups]

    def loader(self, batch: int) -> Iterator[Any]:
        """Yield batches of the samples that are trained on, without end."""
        count = len(self._all) - self._held_out
        part = torch.utils.data.Subset(self._all, range(count))
        make = DataLoader(part, batch_size=batch, shuffle=True, drop_last=True, collate_fn=lambda one: one)
        return endless(make)

    def step(
        self, batches: Iterator[Any], passes: int, factor: float, *, measure: bool = False
    ) -> NoiseEstimate | None:
        """Train one step of ``passes`` passes with the learning rate times ``factor``; φ's estimate if asked for."""
        local = []
        self.optimizer.zero_grad()
        for _ in range(passes):
            before = [None if p.grad is None else p.grad.clone() for p in self.model.parameters()] if measure else []
            batch = next(batches)
            torch.autograd.backward(loss_of(self.model, batch) / passes)
            if measure:
                own = [
                    p.grad if old is None else p.grad - old
                    for p, old in zip(self.model.parameters(), before, strict=True)
                    if p.grad is not None
                ]
                local.append(self._square(own) * passes**2)
            samples = len(batch[0])
        found = None
        if measure:
            whole = self._square([p.grad for p in self.model.parameters() if p.grad is not None])
            found = from_norms(float(torch.stack(local).mean()), float(whole), samples, passes)
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        self.optimizer.step()
        return found

    def _square(self, gradients: list[Tensor]) -> Tensor:
        """Squared norm; with Adam of the gradients over the root of their second moment, corrected for its bias."""
        states = [self.optimizer.state[p] for p in self.model.parameters() if p.grad is not None]
        if not all("exp_avg_sq" in state for state in states):
            return torch.stack([one.float().square().sum() for one in gradients]).sum()
        decay = self.optimizer.param_groups[0]["betas"][1]
        seconds = [state["exp_avg_sq"] / (1 - decay ** float(state["step"])) for state in states]
        pairs = zip(gradients, seconds, strict=True)
        return torch.stack([(one.float() / (second.sqrt() + 1e-8)).square().sum() for one, second in pairs]).sum()

    @torch.no_grad()
    def validation_loss(self) -> float:
        """Return the mean loss over the held-out samples."""
        self.model.eval()
        count = len(self._all)
        losses = [
            float(loss_of(self.model, _batch(self._all, first, min(first + 500, count))))
            for first in range(count - self._held_out, count, 500)
        ]
        self.model.train()
        return mean(losses)


def _mislabel(data: Resident) -> None:
    """Give a fifth of the images a random label: without that the loss, and with it the gradient, soon vanishes."""
    if data.labels is not None:
        chance = torch.Generator().manual_seed(2)
        wrong = torch.rand(len(data), generator=chance) < 0.2
        drawn = torch.randint(0, 10, (len(data),), generator=chance)
        data.labels = torch.where(wrong, drawn, data.labels.cpu()).to(data.labels.device)


def _batch(data: Resident, first: int, last: int) -> tuple[Tensor, Tensor]:
    return data.__getitems__(list(range(first, last)))


# ── throughput ────────────────────────────────────────────────────────────────────────────────────────────────────


def throughput(work: Workload, size: Sizes) -> dict[str, Any]:
    """Measure steps by batch size and accumulation; fit on every second size, and predict the rest."""
    trainee = Trainee(work, size.held_out)
    points = []
    for batch in size.batches:
        for accumulation in (0, 1, 3):
            local = batch // (accumulation + 1)
            if 2 <= local <= size.most_local * (2 if accumulation == 0 else 1):
                points.append((local, accumulation, _step_seconds(trainee, local, accumulation + 1, size.seconds)))
    alone = sorted((local, seconds) for local, accumulation, seconds in points if accumulation == 0)
    used = alone[::2]
    fit = fitted([Observation(1, 1, 0, local, seconds, seconds) for local, seconds in used], size.batches[-1])
    rows = [
        {
            "batch": local * (accumulation + 1),
            "accumulation": accumulation,
            "measured_s": seconds,
            "fitted_s": float(iteration_seconds(fit, local, accumulation, 1, 0)),
            "held_out": accumulation > 0 or (local, seconds) not in used,
        }
        for local, accumulation, seconds in points
    ]
    errors = [abs(row["fitted_s"] / row["measured_s"] - 1) for row in rows if row["held_out"]]
    return {"compute": list(fit.compute), "rows": rows, "mean_error": mean(errors), "worst_error": max(errors)}


def _step_seconds(trainee: Trainee, local: int, passes: int, seconds: float) -> float:
    """Return the median time of a step over this many seconds, after three steps that are not timed."""
    batches = trainee.loader(local)
    times: list[float] = []
    for _ in range(3):
        trainee.step(batches, passes, 0.1)
    settle()
    until = time.perf_counter() + seconds
    while not times or time.perf_counter() < until:
        began = time.perf_counter()
        trainee.step(batches, passes, 0.1)
        settle()
        times.append(time.perf_counter() - began)
    return median(times)


# ── efficiency ────────────────────────────────────────────────────────────────────────────────────────────────────


def efficiencies(work: Workload, size: Sizes) -> list[dict[str, Any]]:
    """At an eighth, a half and the end of a training with M₀, measure φ at several batch sizes."""
    trainee = Trainee(work, size.held_out)
    steps, done, found = size.samples // size.initial, 0, []
    batches = trainee.loader(size.initial)
    for part in (1 / 8, 1 / 2, 1.0):
        while done < part * steps:
            trainee.step(batches, 1, 1.0)
            done += 1
        tried = [size.initial * factor for factor in (1, 2, 4, 8, 16)]
        scales = {batch: _noise(trainee, batch, size) for batch in tried}
        middle = scales[tried[2]]
        found.append(
            {
                "part": part,
                "noise": scales,
                "rows": [
                    {
                        "batch": batch,
                        "measured": float(efficiency(scales[batch], size.initial, batch)),
                        "predicted": float(efficiency(middle, size.initial, batch)),
                    }
                    for batch in tried
                ],
            }
        )
    return found


def _noise(trainee: Trainee, batch: int, size: Sizes) -> float:
    """Return φ at a batch size, over steps that leave the model as it was."""
    kept = copy.deepcopy(trainee.model.state_dict()), copy.deepcopy(trainee.optimizer.state_dict())
    # Gradients of passes that do not fit at once are compared in more passes.
    passes = max(_PASSES, -(-batch // size.most_local))
    batches, scale = trainee.loader(max(1, batch // passes)), NoiseScale()
    for _ in range(max(6, 3 * size.batches[-1] // batch)):
        estimate = trainee.step(batches, passes, 0.0, measure=True)
        assert estimate is not None
        scale = scale.observed(estimate, 0.99)
    trainee.model.load_state_dict(kept[0])
    trainee.optimizer.load_state_dict(kept[1])
    return scale.samples


# ── progress ──────────────────────────────────────────────────────────────────────────────────────────────────────


def progress(work: Workload, size: Sizes) -> list[dict[str, Any]]:
    """Train with M₀, 4 M₀ and 16 M₀ to the same number of statistical epochs; validation loss at ten points of each."""
    found = []
    for factor in (1, 4, 16):
        batch = size.initial * factor
        passes = -(-batch // size.most_local)
        trainee, scale, done, seen, curve, number = Trainee(work, size.held_out), NoiseScale(), 0.0, 0, [], 0
        plain, split = trainee.loader(batch // passes), trainee.loader(max(1, batch // max(passes, _PASSES)))
        while done < size.samples and seen < 8 * size.samples:
            gain = RULES[_RULE[work.kind]](BatchScaling(size.initial, batch, scale.samples, 0.0))
            measure = number % _MEASURE_EVERY == 0 or number < 4
            feed, many = (split, max(passes, _PASSES)) if measure else (plain, passes)
            estimate = trainee.step(feed, many, gain, measure=measure)
            if estimate is not None:
                scale = scale.observed(estimate, _DECAY)
            number += 1
            seen += batch
            done += batch * float(efficiency(scale.samples, size.initial, batch))
            if done >= size.samples * (len(curve) + 1) / 10:
                row = {"statistical": done, "samples": seen, "noise": scale.samples}
                curve.append({**row, "loss": trainee.validation_loss()})
        found.append({"batch": batch, "steps": number, "curve": curve})
    return found


# ── tables ────────────────────────────────────────────────────────────────────────────────────────────────────────


def tables(found: dict[str, Any]) -> str:
    """Return the results as tables in Markdown."""
    lines = [
        "| | fitted on | held out | mean error | worst |",
        "|---|---|---|---|---|",
    ]
    for kind, part in found["workloads"].items():
        rows = part["throughput"]["rows"]
        held = sum(row["held_out"] for row in rows)
        errors = part["throughput"]
        lines.append(
            f"| {kind} | {len(rows) - held} | {held} | {errors['mean_error']:.1%} | {errors['worst_error']:.1%} |"
        )
    lines += ["", "| | of the training | M₀ | 2 M₀ | 4 M₀ | 8 M₀ | 16 M₀ |", "|---|---|---|---|---|---|---|"]
    for kind, part in found["workloads"].items():
        for moment in part["efficiency"]:
            cells = [f"{row['measured']:.2f} / {row['predicted']:.2f}" for row in moment["rows"]]
            lines.append(f"| {kind} | {moment['part']:.0%} | " + " | ".join(cells) + " |")
    lines += ["", "| | batch | steps | samples | validation loss at 30 %, 60 %, 100 % |", "|---|---|---|---|---|"]
    for kind, part in found["workloads"].items():
        for run in part["progress"]:
            curve = run["curve"]
            at = [curve[min(len(curve) - 1, place)]["loss"] for place in (2, 5, 9)]
            shown = ", ".join(f"{loss:.3f}" for loss in at)
            lines.append(f"| {kind} | {run['batch']:,} | {run['steps']:,} | {curve[-1]['samples']:,} | {shown} |")
    return "\n".join(lines)


def main() -> None:
    """Measure and write the results, or print the tables of a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--tiny", action="store_true")
    chosen = parser.parse_args()
    if chosen.table:
        print(tables(json.loads(chosen.table.read_text())))
        return
    name = torch.cuda.get_device_name() if device().type == "cuda" else "processor"
    found: dict[str, Any] = {"device": name, "torch": torch.__version__, "workloads": {}}
    for kind in KINDS:
        work, size = workload(kind, tiny=chosen.tiny), sizes(kind, tiny=chosen.tiny)
        _mislabel(work.data)
        part: dict[str, Any] = {}
        found["workloads"][kind] = part
        for label, measure in (("throughput", throughput), ("efficiency", efficiencies), ("progress", progress)):
            began = time.perf_counter()
            part[label] = measure(work, size)
            print(f"{kind}, {label}: {time.perf_counter() - began:.1f} s", flush=True)
            if chosen.out:
                chosen.out.write_text(json.dumps(found, indent=1))
    print(tables(found))


if __name__ == "__main__":
    main()
