"""AFS's simulations (NSDI '21): eleven virtual clusters of Philly on 64 GPUs, its figures printed beside ours.

``measured`` runs what is asked for and returns mean and 99th-percentile completion times; ``FIGURES`` says which ratios
each of the paper's figures shows. The traces are not shipped; the curves of the models are assumed (``perf.peaked``),
since the paper gives none, so shapes may be compared and bars may not. From the command line::

    python -m shoal.repro.afs FOLDER [--traces 4,9,11] [--seeds 3] [--jobs N] [--only 5,13] [--out FILE]

FOLDER holds one file of format ``simple`` for each trace, named by its number in the paper's Table 3: ``01_….csv.gz``.
With ``--out`` results are kept in FILE, one line a run, and not run again.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import exp, log
from pathlib import Path

from shoal.app import Scenario, run
from shoal.core.errors import InputError
from shoal.core.topology import parse_cluster
from shoal.policy.registry import POLICIES
from shoal.workload.files import read_workload
from shoal.workload.generators.afs import misjudged, widest, with_models
from shoal.workload.schema import Workload

CLUSTER = "gtx1080:16x4"
TRACES = tuple(range(1, 12))
LENGTH_ERROR = 2.0
"""By what factor declared lengths are off, either way, where they are."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A policy, and what is done to the jobs before it gets them: ``widest`` gangs, or lengths ``misjudged``."""

    policy: str
    jobs: str = ""

    def __str__(self) -> str:
        return f"{self.policy} ({self.jobs})" if self.jobs else self.policy


@dataclass(frozen=True, slots=True)
class Measured:
    """One run, of the first ``limit`` jobs of a trace where there is one.

    ``mean`` and ``tail`` are seconds from submission to completion, on average and at the 99th percentile.
    """

    trace: int
    seed: int
    policy: str
    jobs: str
    mean: float
    tail: float
    restarts: int
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times shorter completion times are with ``ours`` than with ``base``."""

    base: Variant
    ours: Variant
    of: str = "mean"


@dataclass(frozen=True, slots=True)
class Figure:
    """One of the paper's figures: the ratios it shows, and what the paper says of them."""

    number: str
    what: str
    ratios: tuple[Ratio, ...]
    paper: str


def _over(base: str, *ours: str, of: str = "mean") -> tuple[Ratio, ...]:
    return tuple(Ratio(Variant(base), Variant(name), of) for name in ours if name in POLICIES)


_AWARE = ("srsf", "optimus", "afs-l", "rank")
_UNAWARE = ("optimus", "max-min", "themis", "afs-p")
FIGURES: dict[str, Figure] = {
    figure.number: figure
    for figure in (
        Figure(
            "5",
            "mean completion time, times shorter than SRTF's (lengths known) and Tiresias-L's (unknown)",
            _over("srtf", *_AWARE) + _over("tiresias", *_UNAWARE),
            "AFS-L 1.2 to 2.7, AFS-P 1.9 to 3.1, each the best of its kind on all 11",
        ),
        Figure(
            "6",
            "mean completion time when gangs are as wide as each job can use, times longer than with those asked for",
            tuple(Ratio(Variant(name, "widest"), Variant(name)) for name in ("srtf", "srsf", "tiresias")),
            "up to 4.85, 5.84 and 16.14; on one trace 21 % and 17 % shorter for SRTF and SRSF",
        ),
        Figure(
            "9",
            "99th-percentile completion time, times shorter than SRTF's and Tiresias-L's",
            _over("srtf", *_AWARE, of="tail") + _over("tiresias", *_UNAWARE, of="tail"),
            "AFS above 1 in most cases; Max-Min or Optimus ahead of it on some traces",
        ),
        Figure(
            "11",
            "mean completion time, times shorter than SRTF's",
            _over("srtf", "srtf-e", "srsf-e", "afs-l"),
            "SRTF-E and SRSF-E gain, AFS-L substantially more",
        ),
        Figure(
            "13",
            "mean completion time, times longer than AFS-L's",
            tuple(Ratio(Variant(name), Variant("afs-l")) for name in ("afs-p", "afs-s")),
            "AFS-P at most about 2; AFS-S similar to AFS-P in many cases",
        ),
        Figure(
            "rank",
            "ours, not the paper's: AFS-L's mean completion time over Rank's, and both with lengths off by a factor 2",
            (
                Ratio(Variant("afs-l"), Variant("rank")),
                Ratio(Variant("afs-l", "misjudged"), Variant("rank", "misjudged")),
                Ratio(Variant("afs-l"), Variant("rank"), "tail"),
            ),
            "not in it",
        ),
    )
}
"""The figures that are simulations of the eleven traces, by number, and one of our own."""

Results = Mapping[tuple[int, int, Variant], Measured]


def variants(figures: Iterable[Figure]) -> tuple[Variant, ...]:
    """Everything that has to be run for these figures, each once."""
    return tuple(dict.fromkeys(v for f in figures for r in f.ratios for v in (r.base, r.ours)))


def trace(folder: Path, number: int, seed: int, jobs: int | None = None) -> Workload:
    """A virtual cluster's jobs, the first ``jobs`` of them, each training a model that the seed draws."""
    found = sorted(folder.glob(f"{number:02d}_*"))
    if len(found) != 1:
        raise InputError("traces", str(folder), f"holds {len(found)} files named {number:02d}_…; it must be one")
    whole = read_workload(found[0], "simple")
    return with_models(whole if jobs is None else whole.first(jobs), seed)


def measure(folder: Path, number: int, seed: int, variant: Variant, jobs: int | None = None) -> Measured:
    """Run one policy on one trace; moving a job costs nothing, as with CoDDL's four milliseconds."""
    workload = trace(folder, number, seed, jobs)
    if variant.jobs == "widest":
        workload = widest(workload)
    elif variant.jobs == "misjudged":
        workload = misjudged(workload, LENGTH_ERROR, seed)
    scenario = Scenario(parse_cluster(CLUSTER), variant.policy, placement="any", restart_cost="0")
    summary = run(scenario, workload).summary
    times = summary["avg_jct"], summary["p99_jct"], summary["restarts"]
    return Measured(number, seed, variant.policy, variant.jobs, *times, limit=jobs)


def measured(
    folder: Path,
    wanted: Sequence[Variant],
    *,
    traces: Sequence[int] = TRACES,
    seeds: Sequence[int] = (0, 1, 2),
    jobs: int | None = None,
    known: Results | None = None,
    tell: Callable[[Measured], None] | None = None,
) -> Results:
    """All of these on all traces and seeds, but for what is ``known``; ``tell`` hears of each as it is done."""
    results = dict(known or {})
    for number in traces:
        for seed in seeds:
            for variant in wanted:
                if (number, seed, variant) not in results:
                    found = results[number, seed, variant] = measure(folder, number, seed, variant, jobs)
                    if tell is not None:
                        tell(found)
    return results


def ratios(results: Results, ratio: Ratio, traces: Sequence[int], seeds: Sequence[int]) -> list[float]:
    """By trace: the geometric mean over the seeds."""

    def on(number: int) -> float:
        logs = [
            log(getattr(results[number, s, ratio.base], ratio.of) / getattr(results[number, s, ratio.ours], ratio.of))
            for s in seeds
        ]
        return exp(sum(logs) / len(logs))

    return [on(number) for number in traces]


def table(figure: Figure, results: Results, traces: Sequence[int], seeds: Sequence[int]) -> str:
    """A figure in words and numbers: a row for each ratio, a column for each trace, and what the paper says."""
    lines = [f"Figure {figure.number}: {figure.what}", f"  {'':38}" + "".join(f"{t:>7}" for t in traces) + "    mean"]
    for ratio in figure.ratios:
        row = ratios(results, ratio, traces, seeds)
        mean = exp(sum(map(log, row)) / len(row))
        name = f"{ratio.base} / {ratio.ours}" + (", tail" if ratio.of == "tail" and figure.number == "rank" else "")
        lines.append(f"  {name:38}" + "".join(f"{value:7.2f}" for value in row) + f"{mean:8.2f}")
    return "\n".join([*lines, f"  paper: {figure.paper}", ""])


def _read(file: Path | None, limit: int | None) -> Results:
    """What a file holds of runs with this limit."""
    if file is None or not file.exists():
        return {}
    rows = [Measured(**json.loads(line)) for line in file.read_text().splitlines()]
    return {(row.trace, row.seed, Variant(row.policy, row.jobs)): row for row in rows if row.limit == limit}


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _figures(text: str) -> list[Figure]:
    unknown = [number for number in text.split(",") if number not in FIGURES]
    if unknown:
        raise argparse.ArgumentTypeError(f"no figure {unknown[0]}; choose from {', '.join(FIGURES)}")
    return [FIGURES[number] for number in text.split(",")]


def _count(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the experiment and print its figures."""
    parser = argparse.ArgumentParser(prog="python -m shoal.repro.afs", description="AFS's figures beside ours")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--traces", type=_numbers, default=list(TRACES), help="by their numbers in Table 3")
    parser.add_argument("--seeds", type=_count, default=3, help="how many draws of models")
    parser.add_argument("--jobs", type=_count, help="only the first so many jobs of each trace")
    parser.add_argument("--only", type=_figures, default=list(FIGURES.values()), help="which figures")
    parser.add_argument("--out", type=Path, help="where results are kept and found again")
    given = parser.parse_args(arguments)
    figures, traces, seeds = given.only, given.traces, range(given.seeds)

    def tell(done: Measured) -> None:
        print(f"trace {done.trace}, seed {done.seed}, {Variant(done.policy, done.jobs)}", file=sys.stderr)
        if given.out is not None:
            with given.out.open("a") as kept:
                kept.write(json.dumps(asdict(done)) + "\n")

    known = _read(given.out, given.jobs)
    results = measured(
        given.folder, variants(figures), traces=traces, seeds=seeds, jobs=given.jobs, known=known, tell=tell
    )
    for figure in figures:
        print(table(figure, results, traces, seeds))


if __name__ == "__main__":
    main()
