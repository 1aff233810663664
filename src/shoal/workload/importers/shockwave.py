"""The format ``shockwave``: Shockwave's traces, and the JSON that its own code makes of them.

- ``.trace``: twelve tab-separated fields, Gavel's ten with the mode (static, accordion, gns) before the weight and the
  duration before the arrival. Work is total steps × batch size. **The trace does not say when a job changes its batch
  size**: accordion and gns jobs get the schedule of ``shoal.workload.batch_schedules``, which is ours. The
  duration is not used, being that of the initial batch size only.
- ``.json``: ``{"jobs": [...]}`` with the authors' own schedule of each job, as runs of epochs at one batch size. Work
  is epochs × samples per epoch and the schedule is exact.

Either way the owner of a dynamic job declares its rule and how far it may scale, and never when it does: in traces up
to the largest batch size its model was measured with, in the JSON up to the largest that the authors' scripts use. None
of the 2,600 public jobs trains a Transformer at more than the batch size it began with, whatever its mode, so there
its owner declares no rule.

Jobs are called by their number, counted from 0. Published by: Zheng et al., "Shockwave: Fair and Efficient Cluster
Scheduling for Dynamic Adaptation in Machine Learning", NSDI 2023.
"""

import msgspec

from shoal.core.errors import InputError
from shoal.workload.batch_schedules import Schedule, batch_schedule, declared
from shoal.workload.importers.gavel import batch_sizes, job_type, trace_job
from shoal.workload.importers.rows import (
    Format,
    ImportResult,
    LeftOut,
    Source,
    collect,
    elements,
    member,
    number,
    tab_lines,
    whole,
)
from shoal.workload.schema import Job

_LARGEST = {"ResNet-18": 256, "ResNet-50": 128, "LM": 80, "Recommendation": 8192}
"""The largest batch size per GPU to which the authors' scripts scale a model; those of other models never scale."""


def read(source: Source) -> ImportResult:
    """Read a trace, or JSON where the text begins with a brace."""
    if source.first_line.lstrip().startswith("{"):
        document = source.document
        jobs = document.get("jobs") if isinstance(document, dict) else None
        return collect(source, elements(source, jobs, 'jobs under "jobs"'), _generated)
    return collect(source, tab_lines(source), _line)


def _line(row: tuple[int, list[str]]) -> Job | LeftOut:
    count, fields = row
    if len(fields) != 12:
        hint = f"has {len(fields)} tab-separated fields; Shockwave's traces have 12"
        raise InputError("row", " ".join(fields)[:80], hint)
    kind, _, _, _, _, steps, gpus, mode, weight, slo, _, arrival = fields
    job = trace_job(str(count), kind=kind, steps=steps, gpus=gpus, weight=weight, slo=slo, arrival=arrival)
    if isinstance(job, LeftOut):
        return job
    sizes, batch = batch_sizes(job.model or ""), job.batch_size or 1
    rule, limits = declared(mode, batch, job.gpus, max(sizes, default=batch))
    changes = batch_schedule(mode, job.work, batch, sizes)
    return msgspec.structs.replace(job, batch_schedule=changes, adaptation=rule, limits=limits)


def _generated(row: object) -> Job:
    model, batch = job_type(str(member(row, "job_type")))
    gpus = whole("gpus", member(row, "gpus"), least=1)
    rule, limits = declared(str(member(row, "mode")), batch, gpus, _LARGEST.get(model, batch))
    per_epoch = whole("samples_per_epoch", member(row, "samples_per_epoch"), least=1)
    epochs = whole("num_epochs", member(row, "num_epochs"), least=1)
    first, schedule = _runs(member(row, "bs_schedule_rle"), epochs, per_epoch)
    if first != batch:
        raise InputError("bs_schedule_rle", first, f"does not begin with the batch size of the job type, {batch}")
    return Job(
        id=str(whole("job", member(row, "job"))),
        submitted=number("arrival_s", member(row, "arrival_s"), least=0.0),
        gpus=gpus,
        work=float(epochs * per_epoch),
        model=model,
        batch_size=batch,
        batch_schedule=schedule,
        weight=number("priority_weight", member(row, "priority_weight"), above=0.0),
        adaptation=rule,
        limits=limits,
    )


def _runs(runs: object, epochs: int, per_epoch: int) -> tuple[int, Schedule]:
    """The first batch size and the later changes, from runs of ``[batch size, epochs]``."""
    if not isinstance(runs, list) or not runs:
        raise InputError("bs_schedule_rle", runs, "must be a list of [batch size, epochs]")
    changes: list[tuple[float, int]] = []
    done = 0
    for run in runs:
        if not isinstance(run, list) or len(run) != 2:
            raise InputError("bs_schedule_rle", run, "must be [batch size, epochs]")
        changes.append((float(done * per_epoch), whole("bs_schedule_rle", run[0], least=1)))
        done += whole("bs_schedule_rle", run[1], least=1)
    if done != epochs:
        raise InputError("bs_schedule_rle", runs, f"covers {done} epochs where num_epochs is {epochs}")
    return changes[0][1], tuple(changes[1:])


def claims(source: Source) -> bool:
    """Whether a file is surely of this format."""
    if source.suffix == ".json":
        return source.text.lstrip().startswith("{") and '"bs_schedule_rle"' in source.text[:65536]
    return source.first_line.count("\t") == 11


FORMAT = Format("shockwave", "Shockwave traces, 12 tab-separated fields, or their JSON with schedules", read, claims)
