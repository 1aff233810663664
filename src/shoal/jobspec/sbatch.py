"""``#SBATCH`` scripts: the usual directives become fields of a job, and the others are listed in notes.

Pure: the script's text, the folder it is submitted from and the environment are arguments.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.core.errors import InputError

MOST_IN_ARRAY = 10_000
"""Most jobs in one batch of submissions."""

_SHORT = {"A": "account", "C": "constraint", "D": "chdir", "G": "gpus", "J": "job-name", "N": "nodes", "a": "array"}
_SHORT |= {"c": "cpus-per-task", "e": "error", "n": "ntasks", "o": "output", "t": "time"}
_FLAGS = ("requeue", "no-requeue")
_INSTEAD = {
    "SLURM_JOB_ID": "SHOAL_JOB",
    "SLURM_JOBID": "SHOAL_JOB",
    "SLURM_PROCID": "RANK",
    "SLURM_LOCALID": "LOCAL_RANK",
    "SLURM_NODEID": "NODE_RANK",
    "SLURM_NTASKS": "WORLD_SIZE",
    "SLURM_RESTART_COUNT": "SHOAL_INCARNATION",
}
"""Slurm's variables, and those that replace them in a job of Shoal."""

_VARIABLE = re.compile(r"\$\{?(SLURM_[A-Z0-9_]+)")
_CALL = re.compile(r"(?:^|[;&|(`]|\bexec|\btime)\s*(srun|scontrol|sbcast|sbatch|squeue|scancel)(?=\s|$)")
_KIND = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]*")


@dataclass(frozen=True, slots=True)
class Directive:
    """One option of an ``#SBATCH`` line: its long name, its value, its text, and the file and line."""

    name: str
    value: str
    text: str
    where: str

    def error(self, hint: str) -> InputError:
        """An ``InputError`` at this line of the script."""
        return InputError(self.text.partition("=")[0].split()[0], self.value, hint, where=self.where)

    def count(self) -> int:
        """The value as a whole number."""
        if not self.value.isdecimal():
            raise self.error("must be a whole number")
        return int(self.value)


@dataclass(slots=True)
class _Job:
    """Fields, environment and notes collected from a script."""

    folder: Path
    environ: Mapping[str, str]
    fields: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    array: tuple[int, ...] | None = None
    limit_seconds: float | None = None
    notes: list[str] = field(default_factory=list)


def jobs_of(
    text: str, path: Path, *, folder: Path, environ: Mapping[str, str], given: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], list[str]]:
    """The fields of a script's jobs (several only for an array), and notes on what differs from Slurm.

    ``given``, from the command line, overrides the script.
    """
    job = _Job(folder, environ)
    wanted = {directive.name: directive for directive in _directives(text, path.name, job.notes)}
    ignored = [d for d in wanted.values() if d.name not in _APPLIED and d.name not in _COUNTED]
    if ignored:
        listed = ", ".join(f"{d.text} (line {d.where.rpartition(':')[2]})" for d in ignored)
        job.notes.append(f"not applied: {listed}")
    _gpus(job, wanted, asked="gpus" not in given)
    for name, apply in _APPLIED.items():
        if name in wanted:
            apply(job, wanted[name])
    _limit(job, wanted, given)
    name = given.get("name") or job.fields.get("name") or as_name(path.stem)
    job.env |= {"SLURM_JOB_NAME": name, "SLURM_SUBMIT_DIR": str(folder)}
    body = {"command": [*_interpreter(text), str(folder / path)], "ranks": "node", **job.fields, **given}
    jobs = [
        {**body, "name": name + suffix, "env": {**job.env, **env, **given.get("env", {})}}
        for suffix, env in _array(job.array)
    ]
    _note_missing(text, jobs[0]["env"], job.notes)
    return jobs, job.notes


# ── reading directives ──────────────────────────────────────────────────────────────────────────────────────────────


def _directives(text: str, name: str, notes: list[str]) -> Iterator[Directive]:
    """Yield the options of the ``#SBATCH`` lines before the first command, as sbatch reads them."""
    commands_began = False
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("#SBATCH"):
            commands_began = commands_began or bool(line.strip() and not line.lstrip().startswith("#"))
        elif commands_began:
            notes.append(f"line {number}: {line.strip()} comes after the first command, and does not count")
        else:
            yield from _options(line.removeprefix("#SBATCH"), f"{name}:{number}")


def _options(line: str, where: str) -> Iterator[Directive]:
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        raise InputError("#SBATCH", line.strip(), f"cannot be read: {error}", where=where) from error
    while words:
        text = words.pop(0)
        if text.startswith("--"):
            name, _, value = text[2:].partition("=")
        elif text.startswith("-"):
            name, value = _SHORT.get(text[1:2], text[:2]), text[2:]
        else:
            name, value = f"the word {text}", text
        if name not in _FLAGS and "=" not in text and not value and words and not words[0].startswith("-"):
            value = words.pop(0)
            text = f"{text} {value}"
        directive = Directive(name, value, text, where)
        if name in _TAKE_VALUES and not value:
            raise directive.error("needs a value")
        yield directive


def _interpreter(text: str) -> list[str]:
    """The interpreter as the kernel reads it: at most two words after ``#!``; bash by default."""
    first = text.partition("\n")[0]
    return first[2:].split(None, 1) if first.startswith("#!") and first[2:].strip() else ["/bin/bash"]


# ── directives with one field each ──────────────────────────────────────────────────────────────────────────────────


def _name(job: _Job, directive: Directive) -> None:
    named = as_name(directive.value)
    if named != directive.value:
        job.notes.append(f"{directive.text}: the name becomes {named}")
    job.fields["name"] = named


def as_name(text: str) -> str:
    """This text as a valid name of a job."""
    return re.sub(r"[^A-Za-z0-9_.\-]+", "-", text).lstrip("_.-")[:64] or "job"


def _time(job: _Job, directive: Directive) -> None:
    if directive.value.upper() in ("UNLIMITED", "INFINITE", "0"):
        return
    if re.fullmatch(r"(?:\d+-)?\d+(?::\d+){0,2}", directive.value) is None:
        raise directive.error("write minutes, minutes:seconds, hours:minutes:seconds or days-hours[:minutes[:seconds]]")
    days, dash, clock = directive.value.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    units = (3600, 60, 1) if dash or len(parts) == 3 else (60, 1)
    seconds = int(days or 0) * 86_400 + sum(part * unit for part, unit in zip(parts, units, strict=False))
    job.limit_seconds = float(seconds) or None


def _chdir(job: _Job, directive: Directive) -> None:
    job.fields["workdir"] = str(job.folder / directive.value)


def _account(job: _Job, directive: Directive) -> None:
    job.fields["tenant"] = directive.value
    job.env["SLURM_JOB_ACCOUNT"] = directive.value


def _constraint(job: _Job, directive: Directive) -> None:
    kinds = directive.value.strip("[]").split("|")
    if not all(_KIND.fullmatch(kind) for kind in kinds):
        job.notes.append(f"not applied: {directive.text}: only KIND|KIND… has a meaning here, kinds of GPU")
    elif "kinds" not in job.fields:
        job.fields["kinds"] = kinds
        job.notes.append(f"{directive.text}: taken as the kinds of GPU the job accepts")
    elif not set(job.fields["kinds"]) <= set(kinds):
        named = job.fields["kinds"][0]
        job.notes.append(f"not applied: {directive.text}: the script asks for {named} GPUs by name")


def _export(job: _Job, directive: Directive) -> None:
    for entry in filter(None, directive.value.split(",")):
        key, equals, value = entry.partition("=")
        if equals:
            job.env[key] = value
        elif key == "ALL":
            job.notes.append(f"{directive.text}: the environment of this shell stays here; name what the job needs")
        elif key in ("NONE", "NIL"):
            continue
        elif key in job.environ:
            job.env[key] = job.environ[key]
        else:
            job.notes.append(f"{directive.text}: {key} is not set here, so it is not passed on")


def _signal(job: _Job, directive: Directive) -> None:
    found = re.fullmatch(r"(?:[RB]+:)?(\w+)(?:@(\d+))?", directive.value)
    if found is None:
        raise directive.error("write [B:]SIGNAL[@SECONDS]")
    job.fields["grace"] = float(found[2] or 60)
    if found[1].upper().removeprefix("SIG") not in ("TERM", "15"):
        job.notes.append(f"{directive.text}: the warning before a stop is SIGTERM, {found[2] or 60} s ahead")


def _requeue(job: _Job, directive: Directive) -> None:
    """Does nothing: Shoal requeues every job."""


def _note(text: str) -> Callable[[_Job, Directive], None]:
    """Return a function that only adds a note on a directive that is not applied, with the reason."""
    return lambda job, directive: job.notes.append(f"not applied: {directive.text}: {text}")


_LOGGED = _note("what a job prints is kept for `shoal logs`")


def _cpus(job: _Job, directive: Directive) -> None:
    job.env["SLURM_CPUS_PER_TASK"] = str(directive.count())
    job.notes.append(f"{directive.text}: no CPUs are set aside; SLURM_CPUS_PER_TASK is set")


def _array_option(job: _Job, directive: Directive) -> None:
    indices, percent, _ = directive.value.partition("%")
    hint = f"write indices such as 0-15, 1,3,5 or 0-15:4, at most {MOST_IN_ARRAY:,}"
    chosen: dict[int, None] = {}
    for part in indices.split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if found is None or found[3] == "0":
            raise directive.error(hint)
        first, last, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
        steps = range(first, last + 1, step)
        if not steps or len(chosen) + len(steps) > MOST_IN_ARRAY:
            raise directive.error(hint)
        chosen |= dict.fromkeys(steps)
    job.array = tuple(chosen)
    if percent:
        job.notes.append(f"{directive.text}: how many run at once is the policy's choice, %… is not applied")


def _array(indices: tuple[int, ...] | None) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield, for each job of an array, the suffix of its name and its own variables."""
    if indices is None:
        yield "", {}
        return
    shared = {
        "SLURM_ARRAY_TASK_COUNT": str(len(indices)),
        "SLURM_ARRAY_TASK_MIN": str(min(indices)),
        "SLURM_ARRAY_TASK_MAX": str(max(indices)),
    }
    for index in indices:
        yield f"_{index}", {**shared, "SLURM_ARRAY_TASK_ID": str(index)}


# ── number of GPUs ──────────────────────────────────────────────────────────────────────────────────────────────────


def _gpus(job: _Job, wanted: Mapping[str, Directive], *, asked: bool) -> None:
    """Set the total number of GPUs from the directives that name GPUs, which must agree."""
    nodes, tasks = _nodes_and_tasks(job, wanted)
    totals: dict[str, int] = {}
    kinds: dict[str, None] = {}
    for name, times in (("gpus", 1), ("gpus-per-node", nodes), ("gres", nodes), ("gpus-per-task", tasks)):
        if name not in wanted:
            continue
        kind, count = _amount(job, wanted[name])
        kinds |= {kind: None} if kind else {}
        # A count per node does not bear on a known total where the number of nodes is unknown.
        if count and (times is not None or "gpus" not in wanted):
            totals[wanted[name].text] = count * (times or 1)
        if name != "gres":
            job.env["SLURM_" + name.upper().replace("-", "_")] = str(count)
    if len(set(totals.values())) > 1 or len(kinds) > 1:
        hint = "do not agree: say it once" if len(kinds) < 2 else "a job's GPUs are of one kind: name one"
        where = next(iter(wanted.values())).where.rpartition(":")[0]
        raise InputError(
            "GPUs", ", ".join(f"{text} makes {count}" for text, count in totals.items()), hint, where=where
        )
    if kinds:
        job.fields["kinds"] = list(kinds)
    if totals:
        job.fields["gpus"] = next(iter(totals.values()))
    elif asked:
        job.notes.append("asks for no GPU, and gets 1: a job of Shoal holds at least one")


def _nodes_and_tasks(job: _Job, wanted: Mapping[str, Directive]) -> tuple[int | None, int]:
    """The number of nodes, None where unknown, and of tasks."""
    nodes = _nodes(job, wanted["nodes"]) if "nodes" in wanted else None
    tasks = wanted["ntasks"].count() if "ntasks" in wanted else None
    per_node = wanted["ntasks-per-node"].count() if "ntasks-per-node" in wanted else None
    for variable, number in (("SLURM_NTASKS", tasks), ("SLURM_NTASKS_PER_NODE", per_node)):
        if number is not None:
            job.env[variable] = str(number)
    if nodes is None and tasks and per_node:
        nodes = -(-tasks // per_node)
    if (nodes or 1) > 1:
        job.notes.append(
            f"{nodes} nodes: counted for their GPUs; the cluster decides on how many nodes those are, and the script "
            "runs once on each of them (NODE_RANK says where)"
        )
    return nodes, tasks or (nodes or 1) * (per_node or 1)


def _nodes(job: _Job, directive: Directive) -> int:
    found = re.fullmatch(r"(\d+)(-\d*)?", directive.value)
    if found is None or int(found[1]) < 1:
        raise directive.error("must be a number of nodes, or two as in 2-4")
    if found[2] and found[2] != f"-{found[1]}":
        job.notes.append(f"{directive.text}: taken as {found[1]}; --min-gpus and --max-gpus make a job elastic")
    return int(found[1])


def _amount(job: _Job, directive: Directive) -> tuple[str | None, int]:
    """The kind, if one is named, and the number of GPUs: ``[KIND:]N``, or ``gpu[:KIND][:N]`` in ``--gres``."""
    entries = [entry.removeprefix("gres/").split(":") for entry in directive.value.split(",")]
    if directive.name == "gres":
        others = [":".join(entry) for entry in entries if entry[0] != "gpu"]
        if others:
            job.notes.append(f"not applied: {', '.join(others)} of {directive.text}")
        entries = [entry[1:] for entry in entries if entry[0] == "gpu"]
        if not entries:
            return None, 0
    if len(entries) > 1:
        raise directive.error("a job's GPUs are of one kind; name one")
    (entry,) = entries
    count = int(entry.pop()) if entry and entry[-1].isdecimal() else 1 if directive.name == "gres" else None
    if count is None or len(entry) > 1 or not all(_KIND.fullmatch(kind) for kind in entry):
        shape = "gpu[:KIND][:N]" if directive.name == "gres" else "[KIND:]N"
        raise directive.error(f"write {shape}")
    return entry[0] if entry else None, count


# ── differences from Slurm ───────────────────────────────────────────────────────────────────────────


def _limit(job: _Job, wanted: Mapping[str, Directive], given: Mapping[str, Any]) -> None:
    """Use a time limit as the estimate of a job's length if none is given; no job is killed for it."""
    if job.limit_seconds is None:
        return
    text = wanted["time"].text
    if "work" in given or "model" in given:
        job.notes.append(f"not applied: {text}: no job is stopped for the time it takes")
        return
    job.fields["work"] = job.limit_seconds
    seconds = f"{job.limit_seconds:,.0f} s"
    job.notes.append(f"{text}: no limit, but for want of --work the estimate of how long it will run ({seconds})")


def _note_missing(text: str, env: Mapping[str, str], notes: list[str]) -> None:
    """Add notes on variables and programs of Slurm that the script uses and will not find."""
    lines = [(i, line) for i, line in enumerate(text.splitlines(), 1) if not line.lstrip().startswith("#")]
    unset = {name: None for _, line in lines for name in _VARIABLE.findall(line) if name not in env}
    if unset:
        listed = ", ".join(f"{name} (but {_INSTEAD[name]} is)" if name in _INSTEAD else name for name in unset)
        notes.append(f"will not be set: {listed}")
    for number, line in lines:
        if found := _CALL.search(line):
            notes.append(f"line {number} calls {found[1]}, which a node may not have: start the program itself")


_APPLIED: dict[str, Callable[[_Job, Directive], None]] = {
    "job-name": _name,
    "time": _time,
    "chdir": _chdir,
    "export": _export,
    "account": _account,
    "constraint": _constraint,
    "signal": _signal,
    "requeue": _requeue,
    "no-requeue": _note("a job that was stopped or crashed is started again"),
    "array": _array_option,
    "output": _LOGGED,
    "error": _LOGGED,
    "cpus-per-task": _cpus,
}
_COUNTED = ("gres", "gpus", "gpus-per-node", "gpus-per-task", "nodes", "ntasks", "ntasks-per-node")
_TAKE_VALUES = frozenset({*_APPLIED, *_COUNTED}) - frozenset(_FLAGS)
