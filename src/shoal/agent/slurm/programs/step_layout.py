"""How the tasks of a job or of a step are spread over the nodes."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shoal.agent.slurm.programs.srun_options import StepOptions, fail


class Slot(NamedTuple):
    """A node as Slurm would show it: its address, the job's node it is on, and a range of the job's GPUs there."""

    host: str
    node: int
    first: int
    gpus: int


def slots_of(hosts: Sequence[tuple[str, int]], nodes: int) -> list[Slot]:
    """Return the nodes that a job sees on these real ones, each an address and its GPUs.

    A job that asked for ``nodes`` equal nodes sees that many, if every real node can be split into whole ones;
    otherwise it sees the real nodes.
    """
    total = sum(gpus for _, gpus in hosts)
    each = total // nodes if nodes else 0
    if each == 0 or total % nodes or any(gpus % each for _, gpus in hosts):
        return [Slot(host, node, 0, gpus) for node, (host, gpus) in enumerate(hosts)]
    return [Slot(host, node, first, each) for node, (host, gpus) in enumerate(hosts) for first in range(0, gpus, each)]


def spread(tasks: int, weights: Sequence[int]) -> list[int]:
    """Return how many tasks each node gets: in proportion to its GPUs, and one at least if there are enough."""
    least = 1 if tasks >= len(weights) else 0
    left, total = tasks - least * len(weights), sum(weights) or 1
    if least == 0:
        return [1 if i < tasks else 0 for i in range(len(weights))]
    ideal = [max(0.0, tasks * weight / total - 1) for weight in weights]
    scale = left / (sum(ideal) or 1)
    counts = [int(share * scale + 1e-9) for share in ideal]
    rest = sorted(range(len(weights)), key=lambda i: counts[i] - ideal[i] * scale)
    for i in rest[: left - sum(counts)]:
        counts[i] += 1
    for i in range(left - sum(counts)):
        counts[i % len(counts)] += 1
    return [1 + count for count in counts]


def job_tasks(slots: Sequence[Slot], *, nodes: int, tasks: int, per_node: int) -> list[int] | None:
    """Return the tasks of each node that a batch script asked for; None if it gave no number."""
    if not tasks and per_node:
        gpus = sum(slot.gpus for slot in slots)
        # On other nodes than it asked for, one task per GPU stays one task per GPU.
        tasks = gpus if nodes * per_node == gpus else per_node * len(slots)
    return spread(tasks, [slot.gpus for slot in slots]) if tasks else None


def tasks_per_node(counts: Sequence[int]) -> str:
    """Return Slurm's way to write counts: ``4(x2),3``."""
    runs: list[list[int]] = []
    for count in counts:
        if runs and runs[-1][0] == count:
            runs[-1][1] += 1
        else:
            runs.append([count, 1])
    return ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in runs)


def plan(
    options: StepOptions, slots: Sequence[Slot], job: Sequence[int] | None, environ: Mapping[str, str]
) -> list[tuple[int, list[int]]]:
    """Return the nodes of a step, each with the ranks of its tasks."""
    chosen, asked = _chosen(options, slots), options.number("ntasks")
    per_node = options.number("ntasks-per-node")
    inherited = int(environ.get("SLURM_NTASKS_PER_NODE") or 0)
    if asked is not None:
        counts = spread(asked, [slots[i].gpus for i in chosen])
    elif per_node is not None:
        counts = [per_node] * len(chosen)
    elif job is not None:
        counts = [job[i] for i in chosen]
    else:
        counts = [inherited or 1] * len(chosen)
    placed, first = [], 0
    for i, count in zip(chosen, counts, strict=True):
        if count:
            placed.append((i, list(range(first, first + count))))
            first += count
    if not placed:
        fail("the step has no node to run on")
    return placed


def _chosen(options: StepOptions, slots: Sequence[Slot]) -> list[int]:
    """Return the nodes on which a step runs, by --nodelist, --relative and --nodes."""
    chosen, nodes = list(range(len(slots))), options.number("nodes")
    if "nodelist" in options.given:
        hosts = expand_hosts(options.given["nodelist"])
        unknown = [host for host in hosts if host not in {slot.host for slot in slots}]
        if unknown:
            fail(f"--nodelist: {unknown[0]!r}: is not a node of this job ({','.join(slot.host for slot in slots)})")
        chosen = [i for i in chosen if slots[i].host in hosts][: max(len(hosts), nodes or 0)]
    chosen = chosen[options.number("relative", 0) or 0 :]
    if nodes is None:
        return chosen
    if nodes > len(chosen):
        fail(f"--nodes: {nodes}: the job has {len(chosen)} to choose from")
    return chosen[:nodes]


def expand_hosts(text: str) -> list[str]:
    """Return the names of a host list such as ``gpu[1-3,07],login``."""
    found, depth, piece = [], 0, ""
    for letter in text + ",":
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            found += _expand(piece.strip()) if piece.strip() else []
            piece = ""
        else:
            piece += letter
        if depth not in (0, 1):
            raise ValueError(f"{text!r}: brackets do not match")
    if depth:
        raise ValueError(f"{text!r}: brackets do not match")
    return found


def _expand(piece: str) -> list[str]:
    head, bracket, rest = piece.partition("[")
    if not bracket:
        return [piece]
    inside, _, tail = rest.partition("]")
    names = []
    for part in inside.split(","):
        low, dash, high = part.partition("-")
        if not low.isdigit() or (dash and not high.isdigit()) or int(high or low) - int(low) > 100_000:
            raise ValueError(f"{piece!r}: write numbers or ranges between the brackets")
        names += [f"{head}{number:0{len(low)}d}" for number in range(int(low), int(high or low) + 1)]
    return [name + after for name in names for after in _expand(tail)] if tail else names
