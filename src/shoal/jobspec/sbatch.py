"""``#SBATCH`` scripts taken as they are: the usual directives become a job, and whatever does not is named.

Pure: what it needs of the world (the script's text, the folder it was submitted from, the environment) it is given.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.core.errors import InputError

MOST_IN_ARRAY = 10_000
"""As many as one batch of submissions holds."""

_SHORT = {"A": "account", "C": "constraint", "D": "chdir", "G": "gpus", "J": "job-name", "N": "nodes", "a": "array"}
_SHORT |= {"c": "cpus-per-task", "e": "error", "n": "ntasks", "o": "output", "t": "time"}
_FLAGS = ("requeue", "no-requeue")
_LIKE = {
    "SLURM_JOB_ID": "SHOAL_JOB",
    "SLURM_JOBID": "SHOAL_JOB",
    "SLURM_PROCID": "RANK",
    "SLURM_LOCALID": "LOCAL_RANK",
    "SLURM_NODEID": "NODE_RANK",
    "SLURM_NTASKS": "WORLD_SIZE",
    "SLURM_RESTART_COUNT": "SHOAL_INCARNATION",
}
"""What a job finds in its environment in place of what Slurm would have told it at its start."""

_VARIABLE = re.compile(r"\$\{?(SLURM_[A-Z0-9_]+)")
_CALL = re.compile(r"(?:^|[;&|(`]|\bexec|\btime)\s*(srun|scontrol|sbcast|sbatch|squeue|scancel)(?=\s|$)")
_KIND = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]*")


@dataclass(frozen=True, slots=True)
class Directive:
    """One option of one ``#SBATCH`` line: its long name, its value, and how and where it was written."""

    name: str
    value: str
    text: str
    where: str

    def error(self, hint: str) -> InputError:
        """Bad input, at this line of the script."""
        return InputError(self.text.partition("=")[0].split()[0], self.value, hint, where=self.where)

    def count(self) -> int:
        """The value as a whole number."""
        if not self.value.isdecimal():
            raise self.error("must be a whole number")
        return int(self.value)


@dataclass(slots=True)
class _Reading:
    """What has been made of a script so far."""

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
    """The fields of a script's jobs, several only for an array; and in words what was not applied as Slurm would.

    ``given`` is what the command line says; it goes before the script.
    """
    reading = _Reading(folder, environ)
    wanted = {directive.name: directive for directive in _directives(text, path.name, reading.notes)}
    passed_over = [d for d in wanted.values() if d.name not in _APPLIED and d.name not in _COUNTED]
    if passed_over:
        listed = ", ".join(f"{d.text} (line {d.where.rpartition(':')[2]})" for d in passed_over)
        reading.notes.append(f"not applied: {listed}")
    _gpus(reading, wanted, asked="gpus" not in given)
    for name, apply in _APPLIED.items():
        if name in wanted:
            apply(reading, wanted[name])
    _limit(reading, wanted, given)
    name = given.get("name") or reading.fields.get("name") or as_name(path.stem)
    reading.env |= {"SLURM_JOB_NAME": name, "SLURM_SUBMIT_DIR": str(folder)}
    body = {"command": [*_interpreter(text), str(folder / path)], "ranks": "node", **reading.fields, **given}
    jobs = [
        {**body, "name": name + suffix, "env": {**reading.env, **env, **given.get("env", {})}}
        for suffix, env in _array(reading.array)
    ]
    _what_is_missing(text, jobs[0]["env"], reading.notes)
    return jobs, reading.notes


# ── reading the lines ────────────────────────────────────────────────────────────────────────────────────────────


def _directives(text: str, name: str, notes: list[str]) -> Iterator[Directive]:
    """The options of the ``#SBATCH`` lines before the first command, as sbatch reads them."""
    over = False
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("#SBATCH"):
            over = over or bool(line.strip() and not line.lstrip().startswith("#"))
        elif over:
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
    """What the kernel would call for this script: the words after ``#!``, of which there are at most two."""
    first = text.partition("\n")[0]
    return first[2:].split(None, 1) if first.startswith("#!") and first[2:].strip() else ["/bin/bash"]


# ── directives that stand alone ──────────────────────────────────────────────────────────────────────────────────


def _name(reading: _Reading, directive: Directive) -> None:
    named = as_name(directive.value)
    if named != directive.value:
        reading.notes.append(f"{directive.text}: the name becomes {named}")
    reading.fields["name"] = named


def as_name(text: str) -> str:
    """The nearest thing to this text that may name a job."""
    return re.sub(r"[^A-Za-z0-9_.\-]+", "-", text).lstrip("_.-")[:64] or "job"


def _time(reading: _Reading, directive: Directive) -> None:
    if directive.value.upper() in ("UNLIMITED", "INFINITE", "0"):
        return
    if re.fullmatch(r"(?:\d+-)?\d+(?::\d+){0,2}", directive.value) is None:
        raise directive.error("write minutes, minutes:seconds, hours:minutes:seconds or days-hours[:minutes[:seconds]]")
    days, dash, clock = directive.value.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    units = (3600, 60, 1) if dash or len(parts) == 3 else (60, 1)
    seconds = int(days or 0) * 86_400 + sum(part * unit for part, unit in zip(parts, units, strict=False))
    reading.limit_seconds = float(seconds) or None


def _chdir(reading: _Reading, directive: Directive) -> None:
    reading.fields["workdir"] = str(reading.folder / directive.value)


def _account(reading: _Reading, directive: Directive) -> None:
    reading.fields["tenant"] = directive.value
    reading.env["SLURM_JOB_ACCOUNT"] = directive.value


def _constraint(reading: _Reading, directive: Directive) -> None:
    kinds = directive.value.strip("[]").split("|")
    if not all(_KIND.fullmatch(kind) for kind in kinds):
        reading.notes.append(f"not applied: {directive.text}: only KIND|KIND… has a meaning here, kinds of GPU")
    elif "kinds" not in reading.fields:
        reading.fields["kinds"] = kinds
        reading.notes.append(f"{directive.text}: taken as the kinds of GPU the job accepts")
    elif not set(reading.fields["kinds"]) <= set(kinds):
        named = reading.fields["kinds"][0]
        reading.notes.append(f"not applied: {directive.text}: the script asks for {named} GPUs by name")


def _export(reading: _Reading, directive: Directive) -> None:
    for entry in filter(None, directive.value.split(",")):
        key, equals, value = entry.partition("=")
        if equals:
            reading.env[key] = value
        elif key == "ALL":
            reading.notes.append(f"{directive.text}: the environment of this shell stays here; name what the job needs")
        elif key in ("NONE", "NIL"):
            continue
        elif key in reading.environ:
            reading.env[key] = reading.environ[key]
        else:
            reading.notes.append(f"{directive.text}: {key} is not set here, so it is not passed on")


def _signal(reading: _Reading, directive: Directive) -> None:
    found = re.fullmatch(r"(?:[RB]+:)?(\w+)(?:@(\d+))?", directive.value)
    if found is None:
        raise directive.error("write [B:]SIGNAL[@SECONDS]")
    reading.fields["grace"] = float(found[2] or 60)
    if found[1].upper().removeprefix("SIG") not in ("TERM", "15"):
        reading.notes.append(f"{directive.text}: the warning before a stop is SIGTERM, {found[2] or 60} s ahead")


def _no_requeue(reading: _Reading, directive: Directive) -> None:
    reading.notes.append(f"not applied: {directive.text}: a job that was stopped or crashed is started again")


def _requeue(reading: _Reading, directive: Directive) -> None:
    """Nothing to do: it is what Shoal does with every job."""


def _output(reading: _Reading, directive: Directive) -> None:
    reading.notes.append(f"not applied: {directive.text}: what a job prints is kept for `shoal logs`")


def _cpus(reading: _Reading, directive: Directive) -> None:
    reading.env["SLURM_CPUS_PER_TASK"] = str(directive.count())
    reading.notes.append(f"{directive.text}: no CPUs are set aside; SLURM_CPUS_PER_TASK is set")


def _array_option(reading: _Reading, directive: Directive) -> None:
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
    reading.array = tuple(chosen)
    if percent:
        reading.notes.append(f"{directive.text}: how many run at once is the policy's choice, %… is not applied")


def _array(indices: tuple[int, ...] | None) -> Iterator[tuple[str, dict[str, str]]]:
    """For each job of an array: what its name ends in, and what its environment says of it."""
    if indices is None:
        yield "", {}
        return
    all_of_them = {
        "SLURM_ARRAY_TASK_COUNT": str(len(indices)),
        "SLURM_ARRAY_TASK_MIN": str(min(indices)),
        "SLURM_ARRAY_TASK_MAX": str(max(indices)),
    }
    for index in indices:
        yield f"_{index}", {**all_of_them, "SLURM_ARRAY_TASK_ID": str(index)}


# ── how many GPUs ────────────────────────────────────────────────────────────────────────────────────────────────


def _gpus(reading: _Reading, wanted: Mapping[str, Directive], *, asked: bool) -> None:
    """GPUs in all, from whichever ways of saying so were used; they must agree."""
    nodes, tasks = _nodes_and_tasks(reading, wanted)
    said: dict[str, int] = {}
    kinds: dict[str, None] = {}
    for name, times in (("gpus", 1), ("gpus-per-node", nodes), ("gres", nodes), ("gpus-per-task", tasks)):
        if name not in wanted:
            continue
        kind, count = _amount(reading, wanted[name])
        kinds |= {kind: None} if kind else {}
        # A part for each of nobody knows how many nodes says nothing of a total that is known.
        if count and (times is not None or "gpus" not in wanted):
            said[wanted[name].text] = count * (times or 1)
        if name != "gres":
            reading.env["SLURM_" + name.upper().replace("-", "_")] = str(count)
    if len(set(said.values())) > 1 or len(kinds) > 1:
        hint = "do not agree: say it once" if len(kinds) < 2 else "a job's GPUs are of one kind: name one"
        where = next(iter(wanted.values())).where.rpartition(":")[0]
        raise InputError("GPUs", ", ".join(f"{text} makes {count}" for text, count in said.items()), hint, where=where)
    if kinds:
        reading.fields["kinds"] = list(kinds)
    if said:
        reading.fields["gpus"] = next(iter(said.values()))
    elif asked:
        reading.notes.append("asks for no GPU, and gets 1: a job of Shoal holds at least one")


def _nodes_and_tasks(reading: _Reading, wanted: Mapping[str, Directive]) -> tuple[int | None, int]:
    """How many nodes, if that can be told, and how many tasks."""
    nodes = _nodes(reading, wanted["nodes"]) if "nodes" in wanted else None
    tasks = wanted["ntasks"].count() if "ntasks" in wanted else None
    per_node = wanted["ntasks-per-node"].count() if "ntasks-per-node" in wanted else None
    for variable, number in (("SLURM_NTASKS", tasks), ("SLURM_NTASKS_PER_NODE", per_node)):
        if number is not None:
            reading.env[variable] = str(number)
    if nodes is None and tasks and per_node:
        nodes = -(-tasks // per_node)
    if (nodes or 1) > 1:
        reading.notes.append(
            f"{nodes} nodes: counted for their GPUs; the cluster decides on how many nodes those are, and the script "
            "runs once on each of them (NODE_RANK says where)"
        )
    return nodes, tasks or (nodes or 1) * (per_node or 1)


def _nodes(reading: _Reading, directive: Directive) -> int:
    found = re.fullmatch(r"(\d+)(-\d*)?", directive.value)
    if found is None or int(found[1]) < 1:
        raise directive.error("must be a number of nodes, or two as in 2-4")
    if found[2] and found[2] != f"-{found[1]}":
        reading.notes.append(f"{directive.text}: taken as {found[1]}; --min-gpus and --max-gpus make a job elastic")
    return int(found[1])


def _amount(reading: _Reading, directive: Directive) -> tuple[str | None, int]:
    """A kind of GPU, if one is named, and a number: ``[KIND:]N``, or ``gpu[:KIND][:N]`` among the generic resources."""
    entries = [entry.removeprefix("gres/").split(":") for entry in directive.value.split(",")]
    if directive.name == "gres":
        others = [":".join(entry) for entry in entries if entry[0] != "gpu"]
        if others:
            reading.notes.append(f"not applied: {', '.join(others)} of {directive.text}")
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


# ── what Slurm would have done besides ───────────────────────────────────────────────────────────────────────────


def _limit(reading: _Reading, wanted: Mapping[str, Directive], given: Mapping[str, Any]) -> None:
    """A time limit is the best guess at a job's length where nobody says better, and nothing is killed for it."""
    if reading.limit_seconds is None:
        return
    text = wanted["time"].text
    if "work" in given or "model" in given:
        reading.notes.append(f"not applied: {text}: no job is stopped for the time it takes")
        return
    reading.fields["work"] = reading.limit_seconds
    seconds = f"{reading.limit_seconds:,.0f} s"
    reading.notes.append(f"{text}: no limit, but for want of --work the estimate of how long it will run ({seconds})")


def _what_is_missing(text: str, env: Mapping[str, str], notes: list[str]) -> None:
    """Name the variables and programs of Slurm that the script uses and will not find."""
    lines = [(i, line) for i, line in enumerate(text.splitlines(), 1) if not line.lstrip().startswith("#")]
    unset = {name: None for _, line in lines for name in _VARIABLE.findall(line) if name not in env}
    if unset:
        listed = ", ".join(f"{name} (but {_LIKE[name]} is)" if name in _LIKE else name for name in unset)
        notes.append(f"will not be set: {listed}")
    for number, line in lines:
        if found := _CALL.search(line):
            notes.append(f"line {number} calls {found[1]}, which a node may not have: start the program itself")


_APPLIED: dict[str, Callable[[_Reading, Directive], None]] = {
    "job-name": _name,
    "time": _time,
    "chdir": _chdir,
    "export": _export,
    "account": _account,
    "constraint": _constraint,
    "signal": _signal,
    "requeue": _requeue,
    "no-requeue": _no_requeue,
    "array": _array_option,
    "output": _output,
    "error": _output,
    "cpus-per-task": _cpus,
}
_COUNTED = ("gres", "gpus", "gpus-per-node", "gpus-per-task", "nodes", "ntasks", "ntasks-per-node")
_TAKE_VALUES = frozenset({*_APPLIED, *_COUNTED}) - frozenset(_FLAGS)
