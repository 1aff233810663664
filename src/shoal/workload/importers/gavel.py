"""The format ``gavel``: Gavel's traces, tab-separated without a header, one job per line.

- Ten fields: job type, command, working directory, steps argument, needs data, total steps, GPUs, priority weight,
  SLO, arrival. The SLO is a multiple of the job's duration; 0 or less means none.
- Seven fields, the older form: job type, command, steps argument, needs data, total steps, arrival, GPUs.

A job type is ``Model (batch size B)``, B being samples per GPU, or a bare name (A3C, CycleGAN) for which a step
counts as one sample. A step is one minibatch on one worker, counted over all workers, so work is total steps × B
samples. The deadline is the arrival plus the SLO times the run time on V100s of one node, by the catalogue. The job on
line n has the id ``n - 1``, as in Gavel. An unknown model is a broken row. A gang for which the model has no V100
figure (the seven-field traces put single-GPU models on several GPUs) is left out and counted. A restart costs
5 seconds, the paper's bound for its models.

Published by: Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads",
OSDI 2020.
"""

import re

import msgspec

from shoal.core.errors import InputError, nearest
from shoal.core.topology import Locality
from shoal.perf.catalog import catalog
from shoal.workload.importers.rows import Format, LeftOut, ParsedFile, Source, collect, number, tab_lines, whole
from shoal.workload.schema import Job

RESTART_SECONDS = 5.0
"""Upper bound on the time to save and load a checkpoint of Gavel's models (§7.5)."""

_TYPE = re.compile(r"^(?P<model>[^()]+?) \(batch size (?P<batch>[0-9]+)\)$")


def read(source: Source) -> ParsedFile:
    """Read a trace whose lines have either form."""
    return collect(source, tab_lines(source), _convert)


def _convert(row: tuple[int, list[str]]) -> Job | LeftOut:
    count, fields = row
    if len(fields) == 10:
        type_name, _, _, _, _, steps, gpus, weight, slo, arrival = fields
    elif len(fields) == 7:
        type_name, _, _, _, steps, arrival, gpus = fields
        weight, slo = "1", "-1"
    else:
        hint = f"has {len(fields)} tab-separated fields; Gavel's traces have 10 or 7"
        raise InputError("row", " ".join(fields)[:80], hint)
    job = trace_job(str(count), type_name=type_name, steps=steps, gpus=gpus, weight=weight, slo=slo, arrival=arrival)
    return job if isinstance(job, LeftOut) else msgspec.structs.replace(job, restart_seconds=RESTART_SECONDS)


def trace_job(
    name: str, *, type_name: str, steps: str, gpus: str, weight: str, slo: str, arrival: str
) -> Job | LeftOut:
    """Return a job from the fields of a line in Gavel's units, or why it is left out."""
    model, batch = job_type(type_name)
    gang = whole("scale_factor", gpus, least=1)
    work = float(whole("total_steps", steps, least=1) * batch)
    submitted = number("arrival_time", arrival, least=0.0)
    rate = catalog().profile(model).rate("v100", gang, Locality.SAME_NODE, batch)
    if not rate > 0.0:
        return LeftOut("jobs on more GPUs than their model can train on")
    slo_factor = number("SLO", slo)
    return Job(
        id=name,
        submitted=submitted,
        gpus=gang,
        work=work,
        model=model,
        batch_size=batch,
        weight=number("priority_weight", weight, above=0.0),
        deadline=submitted + slo_factor * work / rate if slo_factor > 0.0 else None,
    )


def job_type(text: str) -> tuple[str, int]:
    """The model and the samples per GPU of a job type."""
    match = _TYPE.match(text)
    model, batch = (match["model"], int(match["batch"])) if match else (text, 1)
    sizes = batch_sizes(model)
    if not sizes:
        known = {t.model for t in catalog().types() if t.per_gpu_batch}
        raise InputError("job_type", text, nearest(model, known))
    if match is None and sizes != (1,):
        raise InputError("job_type", text, f"names no batch size; write e.g. {model} (batch size {sizes[0]})")
    if batch < 1:
        raise InputError("job_type", text, "must have a batch size of at least 1")
    return model, batch


def batch_sizes(model: str) -> tuple[int, ...]:
    """The samples per GPU that this model was measured with, ascending; empty for a model without a table."""
    return tuple(sorted(t.batch_size for t in catalog().types() if t.model == model and t.per_gpu_batch))


def claims(source: Source) -> bool:
    """Whether the file is certainly in this format."""
    return source.first_line.count("\t") in (6, 9)


FORMAT = Format("gavel", "Gavel traces, 10 or 7 tab-separated fields", read, claims)
