"""Pollux's two models against real training (OSDI '21 §3, figures 1 to 3): its published measurements and our fits.

The authors measured six models on T4 GPUs: the time of a step by placement and batch size, and whole trainings at six
to eight batch sizes, with the gradient's statistics and the validation metric of every epoch. The functions tested here
are those that the policies use: ``perf.fit.fitted``, ``perf.goodput.efficiency`` and ``iteration_seconds``.
``examples/gpu_goodput.py`` does the same on a GPU at hand; docs/gpu.md has its results.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from shoal.core.arrays import Indices
from shoal.core.topology import Locality
from shoal.perf.fit import Observation, fitted
from shoal.perf.goodput import efficiency, iteration_seconds
from shoal.perf.measured_profile import Cell as Measurement
from shoal.perf.measured_profile import MeasuredProfile, NoiseTable, StepTable
from shoal.perf.profile_files import read_profiles
from shoal.report.compare import half_width
from shoal.research.repro.context import ReproContext
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.table import (
    REPRODUCES,
    Cell,
    Chart,
    Column,
    Line,
    Table,
    cannot_be_told,
    differs,
    table,
)
from shoal.workload.importers.pollux import APPLICATIONS

TRACES, SIA_TRACES = "pollux/traces", "sia/traces"
EARLY = 1 / 8
"""Fraction of a training at which the bottom of figure 2 compares measured and predicted efficiency."""

MOST_ERROR = 0.10
"""Largest mean error of the fitted throughput model over all tasks (§3.2)."""

NEAR = 0.1
"""Mean distance of predicted from measured efficiency that counts as accurate here; the paper prints none."""

SPLITS = 5

LOWER_IS_BETTER = ("deepspeech2", "yolov3")
_SPREADS: Mapping[str, float | None] = dict.fromkeys(APPLICATIONS, 0.01) | {"deepspeech2": 0.04, "yolov3": None}
"""§3.1: relative difference of the best validation metric over batch sizes; of YOLOv3 only the loss is published."""

_FLAT = ("bert", "ncf")
"""Models whose efficiency is as high early as late (§3.1)."""


def _profile(data: Path, model: str) -> MeasuredProfile:
    found = read_profiles((str(data / TRACES),), (model,)).profile(model)
    assert isinstance(found, MeasuredProfile)
    return found


# ── figure 1 ──────────────────────────────────────────────────────────────────────────────────────────────────────

GPUS = (1, 2, 4, 8, 12, 16)
SIZES = (512, 2048)


def trade_offs(data: Path) -> dict[str, Any]:
    """Return images per second by batch size and GPUs, and the most efficient batch by half of training and GPUs."""
    profile = _profile(data, "cifar10")
    speeds = {str(size): [_images(profile, gpus, size) for gpus in GPUS] for size in SIZES}
    halves = np.array_split(np.arange(len(profile.noise.ends)), 2)
    best = {
        name: [_best_batch(profile, half, gpus) for gpus in GPUS]
        for name, half in zip(("first", "second"), halves, strict=True)
    }
    return {"speeds": speeds, "best": best}


def _images(profile: MeasuredProfile, gpus: int, size: int) -> float:
    """Images per second at a batch of about ``size`` on as few nodes as hold the GPUs, without accumulation."""
    steps = profile.times["t4"]
    apart = Locality.SAME_NODE if gpus <= steps.node_gpus else Locality.CROSS_NODE
    local = min(round(size / gpus), steps.most_local)
    return gpus * local / steps.seconds(steps.packed(gpus, apart), local).step


def _best_batch(profile: MeasuredProfile, epochs: Indices, gpus: int) -> int:
    def goodput(size: int) -> float:
        noise = [profile.noise.at(int(epoch), size) for epoch in epochs.tolist()]
        return _images(profile, gpus, size) * float(efficiency(np.array(noise), profile.initial_batch, size).mean())

    most = min(profile.max_batch, gpus * profile.times["t4"].most_local)
    sizes = np.unique(np.geomspace(profile.initial_batch, most, 40).astype(int)).tolist()
    return int(max(sizes, key=goodput))


def trades_verdict(found: Mapping[str, Any]) -> str:
    """Return the verdict: a larger batch scales further, and the best batch grows with GPUs and with training."""
    small, large = (found["speeds"][str(size)] for size in SIZES)
    first, second = found["best"]["first"], found["best"]["second"]
    wrong = []
    if not large[-1] / large[0] > small[-1] / small[0]:
        wrong.append("the larger batch does not scale further")
    if not (first[-1] > first[0] and second[-1] > second[0]):
        wrong.append("the best batch does not grow with the GPUs")
    if not all(late >= early for early, late in zip(first, second, strict=True)):
        wrong.append("the best batch is not larger in the second half")
    return differs("; ".join(wrong)) if wrong else REPRODUCES


def _figure_1(context: ReproContext) -> list[Table]:
    found = context.run({"pollux": "figure 1"}, "figure 1", trade_offs, context.data)
    rows: list[Sequence[Cell]] = [
        *([f"images a second, batch {size}", *found["speeds"][str(size)]] for size in SIZES),
        *([f"best batch, {half} half", *found["best"][half]] for half in ("first", "second")),
    ]

    def lines(of: Mapping[str, Sequence[float]]) -> tuple[Line, ...]:
        return tuple(Line(name, tuple(zip(map(float, GPUS), ys, strict=True))) for name, ys in of.items())

    charts = [
        Chart("figure 1a: scalability by batch size", "GPUs", "images a second", (), lines(found["speeds"])),
        Chart("figure 1b: most efficient batch by half of training", "GPUs", "images", (), lines(found["best"])),
    ]
    paper = "a larger batch scales to more GPUs; the best batch grows with the GPUs and in the course of training"
    columns = [Column(""), *(Column(f"{gpus} GPUs", ",.0f") for gpus in GPUS)]
    here = "from the published measurements of ResNet-18 on CIFAR-10; the text prints no numbers"
    title = "figure 1: batch size, GPUs and stage of training"
    return [table(title, columns, rows, paper, here, verdict=trades_verdict(found), charts=charts)]


# ── figure 2 ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class EfficiencyCheck:
    """A model's efficiency at one moment: by batch size, measured and predicted from φ at the middle batch size.

    ``smallest`` and ``largest`` are the measured efficiencies of the largest batch at that moment and at the end.
    ``spread`` is half the range of the best metrics of all trainings over their mean; ``progress`` the worst relative
    difference between steps weighted by our efficiency and the progress that the authors counted.
    """

    batches: tuple[int, ...]
    measured: tuple[float, ...]
    predicted: tuple[float, ...]
    early: float
    late: float
    spread: float
    progress: float

    @property
    def distance(self) -> float:
        """Mean distance of predicted from measured efficiency over the batch sizes."""
        return fmean(abs(m - p) for m, p in zip(self.measured, self.predicted, strict=True))


def check_efficiency(data: Path, model: str) -> EfficiencyCheck:
    """Return the check of one model at ``EARLY``."""
    noise = _profile(data, model).noise
    epoch, last = int(EARLY * len(noise.ends)), len(noise.ends) - 1
    sizes = noise.batch_sizes
    measured = [_efficiency(noise, epoch, size, size) for size in sizes]
    predicted = [_efficiency(noise, epoch, sizes[len(sizes) // 2], size) for size in sizes]
    trainings = [_training(data / TRACES / model / f"validation-{size}.csv") for size in sizes]
    choose = min if model in LOWER_IS_BETTER else max
    best = [choose(row["metric"] for row in rows) for rows in trainings]
    return EfficiencyCheck(
        sizes,
        tuple(measured),
        tuple(predicted),
        measured[-1],
        _efficiency(noise, last, sizes[-1], sizes[-1]),
        (max(best) - min(best)) / 2 / fmean(best),
        max(_progress_error(rows, size, sizes[0]) for rows, size in zip(trainings, sizes, strict=True)),
    )


def _efficiency(noise: NoiseTable, epoch: int, measured_at: int, size: int) -> float:
    return float(efficiency(noise.at(epoch, measured_at), noise.batch_sizes[0], size))


def _training(file: Path) -> list[dict[str, float]]:
    with file.open() as rows:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(rows)]


def _progress_error(rows: Sequence[Mapping[str, float]], size: int, initial: int) -> float:
    """Return the relative difference of Σ steps · (M/M₀) · efficiency(M) from the progress counted at the end."""
    counted, before = 0.0, 0.0
    for row in rows:
        phi = initial * row["grad_var"] / row["grad_sqr"] if row["grad_sqr"] > 0 else 1e15
        counted += (row["iteration"] - before) * size / initial * float(efficiency(phi, initial, size))
        before = row["iteration"]
    return abs(counted / rows[-1]["progress"] - 1.0)


def efficiency_verdict(found: Mapping[str, EfficiencyCheck]) -> str:
    """Return the verdict: predictions are near the measurements, metrics alike, and large batches better later."""
    far = [f"{model}'s efficiency is {c.distance:.2f} off" for model, c in found.items() if c.distance > NEAR]
    for model, check in found.items():
        stated = _SPREADS[model]
        if stated is not None and check.spread > stated + 5e-4:
            far.append(f"{model}'s best metrics are ±{check.spread:.1%}")
        if model not in _FLAT and not check.early < check.late:
            far.append(f"{model}'s largest batch is not more efficient at the end")
    return differs("; ".join(far)) if far else REPRODUCES


def _figure_2(context: ReproContext) -> list[Table]:
    found: dict[str, EfficiencyCheck] = {}
    for model in APPLICATIONS:
        key = {"pollux": "figure 2", "model": model, "early": EARLY}
        found[model] = EfficiencyCheck(**context.run(key, f"figure 2, {model}", check_efficiency, context.data, model))
    rows = [
        [m, f"{c.batches[0]}–{c.batches[-1]}", c.distance, c.early, c.late, c.spread, _SPREADS[m], c.progress]
        for m, c in found.items()
    ]
    columns = [
        Column("model"),
        Column("batches"),
        Column("|predicted − measured|", ".3f"),
        Column("largest batch, at 1/8"),
        Column("at the end"),
        Column("best metric, ±", ".1%"),
        Column("paper, ±", ".0%"),
        Column("statistical epochs, off", ".1%"),
    ]
    charts = [
        Chart(
            f"figure 2, bottom: {model}",
            "log₂ batch size",
            "efficiency",
            (),
            tuple(
                Line(name, tuple((float(np.log2(size)), y) for size, y in zip(c.batches, ys, strict=True)))
                for name, ys in (("measured", c.measured), ("predicted from the middle", c.predicted))
            ),
        )
        for model, c in found.items()
    ]
    paper = (
        "efficiency at other batch sizes is accurately modelled from φ at the middle one; best metrics of all batch "
        "sizes within 1 %, DeepSpeech2 4 %; large ones are less efficient early and close the gap, except BERT, NeuMF"
    )
    here = f"published trainings; no number printed for the efficiency: a mean distance up to {NEAR} counts as accurate"
    verdict = efficiency_verdict(found)
    return [table("figure 2: statistical efficiency", columns, rows, paper, here, verdict=verdict, charts=charts)]


# ── figure 3 ──────────────────────────────────────────────────────────────────────────────────────────────────────


def observed(cells: Sequence[Measurement]) -> list[Observation]:
    """Return measurements as a job's agent would report them."""
    return [
        Observation(
            cell.gpus,
            cell.nodes,
            Locality.SAME_NODE if cell.nodes == 1 else Locality.CROSS_NODE,
            cell.local,
            max(cell.step - cell.sync, 1e-9),
            cell.step,
        )
        for cell in cells
    ]


def throughput_error(fit_on: Sequence[Measurement], judged: Sequence[Measurement], most_local: int) -> float:
    """Return the mean relative error of throughput on ``judged`` of the model fitted to ``fit_on``."""
    fit = fitted(observed(fit_on), most_local)
    local, gpus = (np.array([getattr(cell, name) for cell in judged]) for name in ("local", "gpus"))
    apart = np.array([int(Locality.SAME_NODE if cell.nodes == 1 else Locality.CROSS_NODE) for cell in judged])
    steps = iteration_seconds(fit, local, 0, gpus, apart)
    return float(np.abs(np.array([cell.step for cell in judged]) / steps - 1.0).mean())


def check_throughput(steps: StepTable) -> dict[str, Any]:
    """Return the errors on all cells, on held-out placements by split, and of a fit to one node's and two nodes' cells.

    A split fits to a random half of the placements and judges the other half.
    """
    cells = [cell for cell in steps.cells if cell.local <= steps.most_local]
    places = sorted({(cell.nodes, cell.gpus, cell.seats) for cell in cells})
    held_out = []
    for seed in range(SPLITS):
        drawn = np.random.default_rng([seed, 3]).random(len(places)) < 0.5
        known = {place for place, taken in zip(places, drawn.tolist(), strict=True) if taken}
        parts: tuple[list[Measurement], list[Measurement]] = ([], [])
        for cell in cells:
            parts[(cell.nodes, cell.gpus, cell.seats) not in known].append(cell)
        held_out.append(throughput_error(*parts, steps.most_local))
    near = [cell for cell in cells if cell.gpus <= 8 and cell.nodes <= 2]
    far = [cell for cell in cells if cell.gpus > 8]
    beyond = throughput_error(near, far, steps.most_local) if near and far else None
    return {"all": throughput_error(cells, cells, steps.most_local), "held_out": held_out, "beyond": beyond}


def throughput_verdict(errors: Mapping[str, float]) -> str:
    """Return the verdict: the mean error over all tasks is at most the paper's 10 %, and which tasks are above."""
    if not errors:
        return cannot_be_told("no measured profile")
    far = [f"{name} {error:.1%}" for name, error in errors.items() if error > MOST_ERROR]
    return differs(f"above 10 %: {', '.join(far)}") if far else REPRODUCES


def _throughput_table(context: ReproContext, folder: str, title: str, *, judged: bool) -> Table:
    rows: list[list[Cell]] = []
    fitted_errors: dict[str, float] = {}
    for model in APPLICATIONS:
        profile = read_profiles((str(context.data / folder), str(context.data / TRACES)), (model,)).profile(model)
        assert isinstance(profile, MeasuredProfile)
        for kind, steps in profile.times.items():
            key = {"pollux": "figure 3", "folder": folder, "model": model, "kind": kind}
            found = context.run(key, f"{title}, {model} on {kind}", check_throughput, steps)
            half = half_width(found["held_out"])
            name = model if judged else f"{model}, {kind}"
            rows.append([name, len(steps.cells), found["all"], fmean(found["held_out"]), half, found["beyond"]])
            fitted_errors[name] = found["all"]
    columns = [Column("model"), Column("cells", ",.0f"), Column("error, fitted", ".1%"), Column("held out", ".1%")]
    columns += [Column("± of it", ".1%"), Column("fit up to 8 GPUs, error beyond", ".1%")]
    paper = "over all tasks the mean error of the fitted model is at most 10 %" if judged else ""
    here = f"held out: half of the placements, {SPLITS} random splits, 95 % interval over them"
    verdict = throughput_verdict(fitted_errors) if judged else ""
    charts = [_scaling_chart(context.data, model) for model in APPLICATIONS] if judged else []
    return table(title, columns, rows, paper, here, verdict=verdict, charts=charts)


def _scaling_chart(data: Path, model: str) -> Chart:
    """Figure 3, top: seconds of a step by GPUs, with the most common number of samples on each, measured and fitted."""
    steps = _profile(data, model).times["t4"]
    sizes = [cell.local for cell in steps.cells if cell.seats and cell.gpus == 1]
    local = sorted(sizes)[len(sizes) // 2]
    counts = (1, 2, 4, 8, 16, 32, 64)
    apart = [Locality.SAME_NODE if gpus <= steps.node_gpus else Locality.CROSS_NODE for gpus in counts]
    taken = [steps.seconds(steps.packed(g, a), local).step for g, a in zip(counts, apart, strict=True)]
    fit = iteration_seconds(steps.fit, local, 0, np.array(counts), np.array([int(a) for a in apart])).tolist()
    lines = tuple(
        Line(name, tuple((float(np.log2(gpus)), y) for gpus, y in zip(counts, ys, strict=True)))
        for name, ys in (("measured", taken), ("fitted", fit))
    )
    return Chart(f"figure 3, top: {model}, {local} samples a GPU", "log₂ GPUs", "s a step", (), lines)


def _figure_3(context: ReproContext) -> list[Table]:
    made = [_throughput_table(context, TRACES, "figure 3: throughput model on T4 GPUs", judged=True)]
    if (context.data / SIA_TRACES).exists() and not context.quick:
        made.append(_throughput_table(context, SIA_TRACES, "the same on Sia's kinds of GPU", judged=False))
    return made


_PAPER = "Pollux (OSDI '21)"
REPRODUCTIONS = (
    Reproduction("pollux-1", _PAPER, "figure 1: batch size, GPUs and stage of training", _figure_1, TRACES),
    Reproduction("pollux-2", _PAPER, "figure 2: statistical efficiency against real trainings", _figure_2, TRACES),
    Reproduction("pollux-3", _PAPER, "figure 3: throughput model against measurements", _figure_3, TRACES),
)
