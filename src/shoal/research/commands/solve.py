"""``shoal solve``: one decision on a problem file."""

from pathlib import Path
from typing import Any

import click

from shoal.cli.output import json_option, print_json, print_table


@click.command()
@click.option("--policy", "spec", required=True, metavar="P", help="Policy, as name or name:key=value,…")
@click.option(
    "--problem",
    "path",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Problem, as JSON.",
)
@json_option
def solve(spec: str, path: Path, as_json: bool) -> None:
    """Let a policy solve the allocation problem in a file: allocation, objective, gap, seconds."""
    from shoal.research.problem import read_problems
    from shoal.research.problem import solve as solve_one

    problems = read_problems(path)
    answers = [solve_one(problem, spec) for problem in problems]
    if as_json:
        print_json(answers if len(problems) > 1 else answers[0])
        return
    for answer in answers:
        if "won" in answer:
            _print_auction(answer)
        elif "rounds" in answer:
            _print_window(answer)
        elif "seats" in answer:
            _print_allotment(answer)
        elif "shares" in answer:
            _print_gpu_counts(answer)
        else:
            _print_time_shares(answer)


def _print_auction(answer: dict[str, Any]) -> None:
    kept, shares, rho = answer["kept"], answer["shares"], answer["levels"]
    rows = [
        [app, str(won), f"{1 - kept[app]:.1%}", f"{shares[app]:.4g}", f"{rho[app]:.4g}"]
        for app, won in answer["won"].items()
    ]
    title = f"{answer['policy']}: Σ log 1/ρ = {answer['objective']:.8g}, {answer['left']:.4g} GPUs left"
    notes = [f"gap {answer['gap']:.1e}, {answer['seconds']:.4f} CPU s"]
    print_table(title, ["app", "GPUs won", "paid", "kept", "ρ of what it won"], rows, notes)


def _print_window(answer: dict[str, Any]) -> None:
    length, seconds = answer["window"]["rounds"], answer["window"]["seconds"]
    rows = []
    for job, rounds in answer["rounds"].items():
        runs = set(rounds)
        bar = "".join("■" if n in runs else "·" for n in range(length))
        reached = f"{answer['levels'][job]:.1%}"
        rows.append([job, answer["kinds"][job], bar, str(len(rounds)), reached, f"{answer['rho'][job]:.3f}"])
    title = f"{answer['policy']}: {length} rounds of {seconds:g} s, objective {answer['objective']:.8g}"
    notes = [
        f"welfare {answer['welfare']:.8g} of at most {answer['bound']:.8g} with {answer['left']:,.0f} s left after it"
    ]
    notes += [f"gap {answer['gap']:.1e}, {answer['seconds']:.4f} CPU s"]
    notes += [f"{job} is refused: it {why}" for job, why in answer["refused"].items()]
    print_table(title, ["job", "on", "rounds", "count", "done by then", "ρ"], rows, notes)


def _print_allotment(answer: dict[str, Any]) -> None:
    rows = []
    for job, gpus in answer["shares"].items():
        seats = ", ".join(f"{node}:{count}" for node, count in answer["seats"].get(job, {}).items())
        batch = answer["batches"].get(job)
        size = "" if batch is None else f"{batch['size']} ({batch['per_gpu']} × {batch['accumulation'] + 1})"
        rows.append([job, str(gpus), seats, size, f"{answer['levels'][job]:.6g}", f"{answer['speedups'][job]:.3f}"])
    notes = [f"{job} {why}" for job, why in answer["notes"].items()]
    notes += [f"gap {answer['gap']:.1e}, {answer['seconds']:.4f} CPU s"]
    title = f"{answer['policy']}: power mean of speed-ups {answer['objective']:.8g}"
    print_table(title, ["job", "GPUs", "seats", "batch (per GPU × passes)", "goodput", "speed-up"], rows, notes)


def _print_gpu_counts(answer: dict[str, Any]) -> None:
    rows = [
        [job, str(gpus), answer["kinds"][job] or "", f"{answer['levels'][job]:.6g}"]
        for job, gpus in answer["shares"].items()
    ]
    notes = [f"{job} {why}" for job, why in answer["notes"].items()] + [f"{answer['seconds']:.4f} CPU s"]
    print_table(f"{answer['policy']}: GPUs by job", ["job", "GPUs", "of", "throughput"], rows, notes)


def _print_time_shares(answer: dict[str, Any]) -> None:
    kinds, near = list(next(iter(answer["allocation"].values()), {})), answer.get("consolidated", {})
    nodes = [kind for kind in kinds if any(shares[kind] for shares in near.values())]
    rows = [
        [
            job,
            *(f"{shares[kind]:.4f}" for kind in kinds),
            *(f"{near[job][kind]:.4f}" if job in near else "" for kind in nodes),
            f"{answer['levels'][job]:.6g}",
        ]
        for job, shares in answer["allocation"].items()
    ]
    rows += [
        [" + ".join(pair["jobs"]), *(f"{pair['fraction'][kind]:.4f}" for kind in kinds), ""]
        for pair in answer.get("pairs", [])
    ]
    title = f"{answer['policy']}: objective {answer['objective']:.8g}"
    notes = [f"gap {answer['gap']:.1e}, residual {answer['residual']:.1e}, {answer['seconds']:.4f} CPU s"]
    notes += [f"{job} is refused: it {why}" for job, why in answer["refused"].items()]
    notes += [f"{job}: {why}" for job, why in answer["notes"].items()]
    print_table(title, ["job", *kinds, *(f"{kind} on one node" for kind in nodes), "throughput"], rows, notes)
