"""``#SBATCH`` scripts: options of sbatch become fields of a job; notes name what differs from Slurm.

Pure: the script's text, the folder and the host it is submitted from, the environment and the time are arguments.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from shoal.core.errors import InputError
from shoal.jobspec import sbatch_values as values
from shoal.jobspec.sbatch_environment import note_missing, pass_variables
from shoal.jobspec.sbatch_gpus import KIND, Shape, read_shape
from shoal.jobspec.sbatch_options import Directive, wanted_options
from shoal.wire.batch_script import (
    OPTIONS_VARIABLE,
    SCRIPT_VARIABLE,
    BatchOptions,
    options_text,
    pack_script,
)

_KILL_WAIT_SECONDS = 30.0
"""Slurm's usual time between the stop signal and the kill."""

_ONLY_SHOWN = {"partition": "there are no partitions; --constraint names kinds of GPU", "qos": "see quotas"}
_PARTITION = "shoal"
"""Partition that scripts see if they name none."""


@dataclass(slots=True)
class _Job:
    """Fields, variables, batch options and notes collected from a script."""

    wanted: Mapping[str, Directive]
    folder: Path
    fields: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def value(self, name: str) -> str:
        """The value of an option, empty if it is not given."""
        return self.wanted[name].value if name in self.wanted else ""


def jobs_of(
    text: str,
    path: Path,
    *,
    folder: Path,
    environ: Mapping[str, str],
    given: Mapping[str, Any],
    now: datetime,
    host: str = "",
    words: Sequence[str] = (),
    arguments: Sequence[str] = (),
) -> tuple[list[dict[str, Any]], list[str]]:
    """The fields of a script's jobs (several only for an array), and notes on what differs from Slurm.

    ``words`` are options of a command line, which override the script, and ``arguments`` are the script's own. The
    fields in ``given`` override both.
    """
    if "\r\n" in text:
        hint = "has DOS line breaks (\\r\\n), which sbatch refuses too; remove them with `sed -i 's/\\r$//'`"
        raise InputError("script", path.name, hint)
    notes: list[str] = []
    job = _Job(wanted_options(text, path.name, environ, words, notes), folder, notes=notes)
    shape = read_shape(job.wanted, job.env, notes)
    _resources(job, shape, asked="gpus" not in given)
    _plain(job)
    _waiting(job, now)
    _time(job, given)
    _files(job)
    pass_variables(job.env, job.wanted.get("export"), text, environ, notes)
    name = given.get("name") or job.fields.get("name") or as_name(path.stem)
    job.env |= {"SLURM_JOB_NAME": name, "SLURM_SUBMIT_DIR": str(folder), "SLURM_SUBMIT_HOST": host}
    indices, most = values.array(job.wanted["array"]) if "array" in job.wanted else (None, None)
    number = int(now.timestamp() * 1000) % 2_000_000_000
    if indices is not None:
        job.fields |= {"array": f"{name[:50]}-{number}"} | ({"most_at_once": most} if most else {})
    interpreter = _interpreter(text)
    body = {"command": [*interpreter, str(folder / path), *arguments], "ranks": "node", **job.fields, **given}
    _script(job, text, len(interpreter))
    jobs = [
        {**body, "name": name[: 64 - len(suffix)] + suffix, "env": {**job.env, **env, **given.get("env", {})}}
        for suffix, env in values.array_variables(indices, number)
    ]
    note_missing(text, jobs[0]["env"], notes)
    return jobs, notes


def _interpreter(text: str) -> list[str]:
    """The interpreter as the kernel reads it: at most two words after ``#!``; bash by default."""
    first = text.partition("\n")[0]
    return first[2:].split(None, 1) if first.startswith("#!") and first[2:].strip() else ["/bin/bash"]


def as_name(text: str) -> str:
    """This text as a valid name of a job."""
    return re.sub(r"[^A-Za-z0-9_.\-]+", "-", text).lstrip("_.-")[:64] or "job"


def _script(job: _Job, text: str, at: int) -> None:
    """Keep the script as it is now, so that later changes of the file do not count."""
    packed = pack_script(text)
    if packed is None:
        job.notes.append("the script is too long to be kept: it is read from its path when the job starts")
    else:
        job.env[SCRIPT_VARIABLE] = packed
        job.options["script"] = at
    job.env[OPTIONS_VARIABLE] = options_text(BatchOptions(**job.options))


# ── resources ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _resources(job: _Job, shape: Shape, *, asked: bool) -> None:
    """Set GPUs, kinds, CPUs and memory."""
    wanted, fields = job.wanted, job.fields
    if shape.kind:
        fields["kinds"] = [shape.kind]
    if shape.gpus:
        fields["gpus"] = shape.gpus
    elif asked:
        fields["gpus"] = shape.nodes or 1
        job.notes.append(f"asks for no GPU, and gets {shape.nodes or 1}: a job of Shoal holds at least one on a node")
    named = {"nodes": shape.nodes, "tasks": shape.tasks, "tasks_per_node": shape.per_node}
    named["gpus_per_task"] = shape.gpus_per_task
    job.options |= {name: number for name, number in named.items() if number}
    if (shape.nodes or 1) > 1:
        job.notes.append(
            f"{shape.nodes} nodes: the cluster may place their GPUs on other numbers of machines; the script sees "
            f"{shape.nodes} nodes if the machines hold whole ones, else the machines: SLURM_NNODES says which"
        )
    on_node = -(-(shape.gpus or 1) // (shape.nodes or 1))
    cpus = 0
    if "cpus-per-task" in wanted:
        each = wanted["cpus-per-task"].count()
        job.env["SLURM_CPUS_PER_TASK"] = str(each)
        cpus = each * shape.tasks_on_node
    elif "cpus-per-gpu" in wanted:
        job.env["SLURM_CPUS_PER_GPU"] = str(wanted["cpus-per-gpu"].count())
        cpus = wanted["cpus-per-gpu"].count() * on_node
    if cpus:
        fields["cpus"] = cpus
    _memory(job, on_node, cpus)


def _memory(job: _Job, gpus: int, cpus: int) -> None:
    """Set the memory of each node, from that of a node, a GPU or a CPU."""
    for name, times, variable in (
        ("mem", 1, "SLURM_MEM_PER_NODE"),
        ("mem-per-gpu", gpus, "SLURM_MEM_PER_GPU"),
        ("mem-per-cpu", cpus or 1, "SLURM_MEM_PER_CPU"),
    ):
        if name in job.wanted:
            size = values.memory(job.wanted[name])
            job.env[variable] = str(size >> 20)
            if size:
                job.fields["memory"] = size * times


# ── fields ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _plain(job: _Job) -> None:
    """Set the fields that one option each decides."""
    wanted, fields = job.wanted, job.fields
    if "job-name" in wanted:
        fields["name"] = named = as_name(job.value("job-name"))
        if named != job.value("job-name"):
            job.notes.append(f"{wanted['job-name'].text}: the name becomes {named}")
    if "chdir" in wanted:
        fields["workdir"] = str(job.folder / job.value("chdir"))
    if "account" in wanted:
        fields["tenant"] = job.env["SLURM_JOB_ACCOUNT"] = job.value("account")
    job.env["SLURM_JOB_PARTITION"] = _PARTITION
    for name, hint in _ONLY_SHOWN.items():
        if name in wanted:
            job.env[f"SLURM_JOB_{name.upper()}"] = job.value(name)
            job.notes.append(f"not applied: {wanted[name].text}: {hint}; SLURM_JOB_{name.upper()} is set")
    _priority(job)
    if "constraint" in wanted:
        _constraint(job, wanted["constraint"])


def _priority(job: _Job) -> None:
    """Set the fields that decide when and how often the job runs."""
    wanted, fields = job.wanted, job.fields
    if "nice" in wanted:
        nice = wanted["nice"].value or "100"
        if not re.fullmatch(r"-?\d{1,6}", nice):
            raise wanted["nice"].error("must be a whole number")
        fields["priority"] = -int(nice)
    if "exclusive" in wanted:
        fields["exclusive"] = True
        if job.value("exclusive"):
            job.notes.append(f"{wanted['exclusive'].text}: taken as --exclusive: no other job runs on its nodes")
    # As in Slurm: a script that fails is not started again, and one that is stopped has 30 s; --no-requeue forbids
    # stopping it for other jobs.
    fields |= {"retries": 0, "grace": _KILL_WAIT_SECONDS}
    if "no-requeue" in wanted:
        fields["preemptible"] = "no"


def _constraint(job: _Job, directive: Directive) -> None:
    kinds = directive.value.strip("[]").split("|")
    if not all(KIND.fullmatch(kind) for kind in kinds):
        job.notes.append(f"not applied: {directive.text}: only KIND|KIND… has a meaning here, kinds of GPU")
    elif "kinds" not in job.fields:
        job.fields["kinds"] = kinds
        job.notes.append(f"{directive.text}: taken as the kinds of GPU the job accepts")
    elif not set(job.fields["kinds"]) <= set(kinds):
        named = job.fields["kinds"][0]
        job.notes.append(f"not applied: {directive.text}: the script asks for {named} GPUs by name")


def _waiting(job: _Job, now: datetime) -> None:
    """Set the conditions for which the job waits before its start."""
    if "dependency" in job.wanted:
        after, singleton = values.dependencies(job.wanted["dependency"])
        job.fields |= ({"after": after} if after else {}) | ({"singleton": True} if singleton else {})
        job.env["SLURM_JOB_DEPENDENCY"] = job.value("dependency")
    if "begin" in job.wanted:
        job.fields["begin"] = values.begin(job.wanted["begin"], now)
    if "hold" in job.wanted:
        job.fields["hold"] = True


def _time(job: _Job, given: Mapping[str, Any]) -> None:
    """Set the time limit, its warning signal, and the limit as the estimate of the job's length if none is given."""
    limit = values.time_limit(job.wanted["time"]) if "time" in job.wanted else None
    if limit is not None:
        job.fields["time"] = limit
        if "work" not in given and "model" not in given:
            job.fields["work"] = limit
    if "signal" in job.wanted:
        number, before, batch = values.signal_request(job.wanted["signal"])
        if limit is None:
            job.notes.append(f"not applied: {job.wanted['signal'].text}: there is no --time of which it could warn")
            return
        # The script's parent passes it on, to the script or to its steps.
        job.fields["signal"] = {"signal": number, "before": before, "main": True}
        job.options["signal_batch"] = batch


def _files(job: _Job) -> None:
    """Set the files to which the script's output is copied."""
    for name in ("output", "error"):
        if name in job.wanted:
            job.options[name] = job.value(name)
    if "open-mode" in job.wanted:
        mode = job.value("open-mode")
        if mode not in ("append", "truncate"):
            raise job.wanted["open-mode"].error("must be append or truncate")
        job.options["append"] = mode == "append"
