"""Nodes, tasks and GPUs that a batch script asks for."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from shoal.core.errors import InputError
from shoal.jobspec.sbatch_options import GPU_OPTIONS, Directive

KIND = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]*")


@dataclass(frozen=True, slots=True)
class Shape:
    """Nodes, tasks and GPUs that a script asks for, None if not named. ``tasks_known`` are its tasks, or a guess."""

    nodes: int | None
    tasks: int | None
    per_node: int | None
    gpus: int | None
    gpus_per_task: int | None
    kind: str | None

    @property
    def tasks_known(self) -> int:
        """Number of tasks; one for each node if the script does not say."""
        return self.tasks or (self.nodes or 1) * (self.per_node or 1)

    @property
    def tasks_on_node(self) -> int:
        """Most tasks on one node, of as many nodes as asked for."""
        return self.per_node or -(-self.tasks_known // (self.nodes or 1))


def read_shape(wanted: Mapping[str, Directive], env: dict[str, str], notes: list[str]) -> Shape:
    """The shape of the job; directives that name GPUs must agree."""
    nodes = _nodes(wanted["nodes"], notes) if "nodes" in wanted else None
    tasks = wanted["ntasks"].count() if "ntasks" in wanted else None
    per_node = wanted["ntasks-per-node"].count() if "ntasks-per-node" in wanted else None
    if nodes is None and tasks and per_node:
        nodes = -(-tasks // per_node)
    guessed = tasks or (nodes or 1) * (per_node or 1)
    totals: dict[str, int] = {}
    kinds: dict[str, None] = {}
    counts: dict[str, int] = {}
    for name, times in zip(GPU_OPTIONS, (1, nodes, nodes, guessed), strict=True):
        if name not in wanted:
            continue
        kind, count = _amount(wanted[name], notes)
        kinds |= {kind: None} if kind else {}
        counts[name] = count
        # A count per node does not bear on a known total where the number of nodes is unknown.
        if count and (times is not None or "gpus" not in wanted):
            totals[wanted[name].text] = count * (times or 1)
        if name != "gres":
            env["SLURM_" + name.upper().replace("-", "_")] = str(count)
    if len(set(totals.values())) > 1 or len(kinds) > 1:
        hint = "do not agree: say it once" if len(kinds) < 2 else "a job's GPUs are of one kind: name one"
        where = next(iter(wanted.values())).where.rpartition(":")[0]
        shown = ", ".join(f"{text} makes {count}" for text, count in totals.items())
        raise InputError("GPUs", shown, hint, where=where)
    total = next(iter(totals.values()), None)
    if total is None and "ntasks-per-gpu" in wanted:
        total = -(-guessed // max(wanted["ntasks-per-gpu"].count(), 1))
    return Shape(nodes, tasks, per_node, total, counts.get("gpus-per-task"), next(iter(kinds), None))


def _nodes(directive: Directive, notes: list[str]) -> int:
    found = re.fullmatch(r"(\d{1,6})(-\d*)?", directive.value)
    if found is None or int(found[1]) < 1:
        raise directive.error("must be a number of nodes, or two as in 2-4")
    if found[2] and found[2] != f"-{found[1]}":
        notes.append(f"{directive.text}: taken as {found[1]}; --min-gpus and --max-gpus make a job elastic")
    return int(found[1])


def _amount(directive: Directive, notes: list[str]) -> tuple[str | None, int]:
    """The kind, if one is named, and the number of GPUs: ``[KIND:]N``, or ``gpu[:KIND][:N]`` in ``--gres``."""
    entries = [entry.removeprefix("gres/").split(":") for entry in directive.value.split(",")]
    if directive.name == "gres":
        others = [":".join(entry) for entry in entries if entry[0] != "gpu"]
        if others:
            notes.append(f"not applied: {', '.join(others)} of {directive.text}")
        entries = [entry[1:] for entry in entries if entry[0] == "gpu"]
        if not entries:
            return None, 0
    if len(entries) > 1:
        raise directive.error("a job's GPUs are of one kind; name one")
    (entry,) = entries
    count = int(entry.pop()) if entry and entry[-1].isdecimal() else 1 if directive.name == "gres" else None
    if count is None or len(entry) > 1 or not all(KIND.fullmatch(kind) for kind in entry):
        shape = "gpu[:KIND][:N]" if directive.name == "gres" else "[KIND:]N"
        raise directive.error(f"write {shape}")
    return entry[0] if entry else None, count
