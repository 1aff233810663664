"""The tables of docs/gpu.md, from the file that gpu_measure.py wrote. A part that failed is shown with its error."""

from collections.abc import Callable, Sequence
from typing import Any

Rows = list[str]


def page(found: dict[str, Any]) -> str:
    """Every part of the file as a section, in its order."""
    lines: Rows = []
    machines = [part["machine"] for part in found["parts"].values() if "machine" in part]
    if machines:
        about = machines[0]
        lines += [
            f"Measured on {about['gpu'] or 'a processor, without a GPU'} with PyTorch {about['torch']}, Python "
            f"{about['python']} and {about['processors']} processors"
            + (", as small as can be." if found["tiny"] else "."),
            "",
        ]
    for name, part in found["parts"].items():
        title, render = SECTIONS[name]
        lines += [f"## {title}", ""]
        if "error" in part:
            last = part.get("stderr", "").strip().splitlines()[-1:]
            lines += [f"Not measured: {part['error']}. {' '.join(last)}".rstrip(), ""]
        else:
            lines += [*render(part["figures"]), ""]
    return "\n".join(lines)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Rows:
    return [_row(head), "|" + "---|" * len(head), *(_row(row) for row in rows)]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


# ── the parts ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _overhead(figures: dict[str, Any]) -> Rows:
    variants = ("plain again", "alone", "managed", "managed, looking")
    rows = []
    for name, told in figures.items():
        cells = [f"{name}, {told['batch']} a step", f"{told['step_ms']['plain']:.2f} ms"]
        for variant in variants:
            least, most = told["ratio_quartiles"][variant]
            cells.append(f"{_percent(told['ratio'][variant])} ({_percent(least)} to {_percent(most)})")
        rows.append(cells)
    head = ("", "plain step", "the same again", "library, without Shoal", "under Shoal", "under Shoal, with looks")
    return _table(head, rows)


def _checkpoints(figures: dict[str, Any]) -> Rows:
    head = ("", "parameters", "size", "training waits", "durable after", "resumed in", "state identical")
    rows = [
        (
            kind,
            f"{told['parameters'] / 1e6:.1f} M",
            f"{told['bytes'] / 1e6:.0f} MB",
            f"{1e3 * told['staged_s']:.0f} ms",
            f"{told['durable_s']:.2f} s",
            f"{told['resumed_s']:.2f} s",
            "yes" if told["state_identical"] else "no",
        )
        for kind, told in figures.items()
    ]
    compared = []
    for kind, told in figures.items():
        for way in ("deterministic", "usual"):
            resumed, repeated = told[way]["resumed_apart"], told[way]["repeated_apart"]
            compared.append(
                (
                    kind,
                    way,
                    f"{told[way]['stopped_at_step']} of {told['steps']}",
                    f"{resumed['steps_identical']}, {resumed['most']:.1e}",
                    f"{repeated['steps_identical']}, {repeated['most']:.1e}",
                )
            )
    losses = ("", "kernels", "stopped after", "resumed: losses identical, most apart", "run twice: the same")
    return [*_table(head, rows), "", *_table(losses, compared)]


def _noise(figures: dict[str, Any]) -> Rows:
    rows = [
        (
            kind,
            f"{point['steps']}",
            f"{point['loss']:.3f}",
            _samples(point["passes"], point["passes_halves_apart"]),
            _samples(point["pairs"], point["pairs_halves_apart"]),
            f"{point['pairs'] / point['passes']:.2f}" if point["pairs"] and point["passes"] else "–",
        )
        for kind, told in figures.items()
        for point in told["points"]
    ]
    looks = [
        (
            f"{kind} {size}",
            f"{cost['step_ms']:.2f} ms",
            f"{cost['look_ms']:.2f} ms",
            f"{100 * cost['look_ms'] / cost['step_ms']:.0f} %",
            f"{cost['counted_ms']:.2f} ms",
        )
        for kind, told in figures.items()
        for size, cost in told["look"].items()
    ]
    return [
        *_table(("", "steps", "loss", "φ by passes (halves)", "φ by two steps (halves)", "second over first"), rows),
        "",
        *_table(("", "step", "a look adds", "of the step", "what it counts itself"), looks),
    ]


def _samples(scale: float | None, apart: float | None) -> str:
    if scale is None:
        return "no gradient seen above the noise"
    return f"{scale:,.0f}" + (f" (× {apart:.2f})" if apart else "")


def _pairs(figures: dict[str, Any]) -> Rows:
    lines: Rows = []
    for way in ("time-slicing", "mps"):
        told = figures[way]
        if "skipped" in told:
            lines += [f"By {way}: not measured; {told['skipped']}.", ""]
            continue
        names = list(told["alone"])
        kept: dict[tuple[str, str], float | None] = {}
        for pair in told["pairs"]:
            for mine, other, part in (
                (pair["one"], pair["other"], pair["kept"][0]),
                (pair["other"], pair["one"], pair["kept"][1]),
            ):
                kept[mine, other] = sum(pair["kept"]) / 2 if mine == other and all(pair["kept"]) else part
        rows = [
            [name, _known(told["alone"][name], ",.0f", "/s"), *(_known(kept[name, other], ".2f") for other in names)]
            for name in names
        ]
        lines += [*_table((f"by {way}", "alone", *(f"beside {name}" for name in names)), rows), ""]
    return lines[:-1]


def _known(value: float | None, form: str, unit: str = "") -> str:
    return "–" if value is None else f"{value:{form}}{unit}"


def _queue(figures: dict[str, Any]) -> Rows:
    rows = [
        (
            job["name"],
            job["state"],
            f"{job['jct_s']:.0f} s",
            f"{job['gpu_s']:.0f} s",
            f"{job['trained_s']:.0f} s",
            f"{100 * job['share_while_all_live']:.0f} % ({job['rounds_ahead']:+.1f})",
            f"{job['restarts']}",
        )
        for job in figures["jobs"]
    ]
    head = (
        "",
        "ended",
        "in",
        "had the GPU",
        "trained",
        "of the time while all four were there (rounds ahead)",
        "started again",
    )
    lines = _table(head, rows)
    if figures["timed_out"]:
        lines += ["", "Not all had ended when the time was up."]
    elif figures.get("makespan_s"):
        lines += ["", f"All ended after {figures['makespan_s']:.0f} s, in {figures['starts']} starts."]
    costs = (
        ("from the last step of one to the first of the next", "idle_between_s"),
        ("from the start of a process to its first step", "process_to_first_step_s"),
        ("of it importing", "of_it_importing_s"),
        ("of it making model and data", "of_it_making_s"),
        ("from the last step to leaving, checkpoint included", "last_step_to_gone_s"),
    )
    spans = [
        (name, f"{told['median']:.2f} s", f"{told['least']:.2f} to {told['most']:.2f} s")
        for name, key in costs
        if (told := figures.get(key))
    ]
    return [
        *lines,
        "",
        *_table(("changing over", "median", "range"), spans),
        "",
        f"`shoal replay`: {figures['replay']}",
    ]


def _elastic(figures: dict[str, Any]) -> Rows:
    rows = [
        (
            kind,
            told["over"],
            f"{told['plain_ms']:.2f} ms",
            f"{told['elastic_ms']:.2f} ms",
            f"{told['losses_apart']['steps_identical']} of {told['steps']}, {told['losses_apart']['most']:.1e}",
        )
        for kind, told in figures.items()
    ]
    return _table(("", "over", "plain step", "elastic step", "losses identical, most apart"), rows)


SECTIONS: dict[str, tuple[str, Callable[[dict[str, Any]], Rows]]] = {
    "overhead": ("What the library costs", _overhead),
    "checkpoints": ("Checkpoints", _checkpoints),
    "noise": ("The noise scale", _noise),
    "pairs": ("Two jobs on one GPU", _pairs),
    "queue": ("Four jobs take turns", _queue),
    "elastic": ("The elastic trainer over NCCL", _elastic),
}
