"""``shoal submit``: submit a command, a job file or a batch script."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import click

from shoal.cli.client import cluster_options
from shoal.cli.live_tables import limit_notes
from shoal.cli.output import print_json, say, warn
from shoal.cli.waiting_options import waiting_fields, waiting_options
from shoal.core.errors import InputError
from shoal.core.sizes import read_size
from shoal.wire.messages import NodeRow

if TYPE_CHECKING:
    from shoal.jobspec.job_file import JobFile
    from shoal.wire.client import Client
    from shoal.wire.messages import Submission

_MOST = 10_000
"""Most jobs in one batch."""

_MOST_PATH = 4096
"""Most characters of a search path that is sent."""

_BATCH_TIMEOUT_SECONDS = 120.0
_AFTER_DASHES = "shoal.submit.command"


class TakesCommand(click.Command):
    """A click command that separates the words after ``--`` from its own arguments, which click alone does not."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Store the words after the first ``--`` in the context."""
        if "--" in args:
            at = args.index("--")
            ctx.meta[_AFTER_DASHES] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)


@click.command(cls=TakesCommand, options_metavar="[OPTIONS]")
@click.argument("words", nargs=-1, metavar="FILE | -- CMD…")
@click.option("--name", metavar="NAME", help="Name of the job; its id begins with it.")
@click.option("--gpus", type=int, metavar="N", help="GPUs to ask for.")
@click.option("--min-gpus", type=int, metavar="N", help="Fewest GPUs it can run on.  [default: --gpus]")
@click.option("--max-gpus", type=int, metavar="N", help="Most GPUs it can use.  [default: --gpus]")
@click.option("--tenant", metavar="T", help="Tenant that owns the job.  [default: the token's]")
@click.option("--work", type=float, metavar="W", help="Total work: samples with --model, else seconds on its GPUs.")
@click.option("--model", metavar="M", help="Model of the catalogue whose speeds apply.")
@click.option("--kinds", metavar="KIND,…", help="Kinds of GPU it accepts.  [default: any]")
@click.option("--weight", type=float, metavar="W", help="Weight among the tenant's jobs.")
@click.option("--deadline", type=float, metavar="SECONDS", help="Seconds from now by which it should end.")
@click.option("--workdir", metavar="DIR", help="Working folder.  [default: the current one]")
@click.option("--env", multiple=True, metavar="K=V", help="Environment variable; repeatable.")
@click.option("--ranks", metavar="gpu|node", help="Run the command once per GPU, or once per node.")
@click.option(
    "--resizes", metavar="restart|in_place", help="Resize by a restart, or in place while other workers train."
)
@click.option("--slurm", is_flag=True, help="Run the command once, as a batch script: with SLURM_* variables and srun.")
@click.option("--grace", type=float, metavar="SECONDS", help="Seconds between the warning (SIGTERM) and the kill.")
@click.option(
    "--preemptible",
    metavar="auto|yes|no",
    help="Whether it may be stopped to make room: once it has saved, always or never.  [default: auto]",
)
@click.option("--cpus", type=int, metavar="N", help="CPUs of each rank.  [default: no limit]")
@click.option("--memory", metavar="SIZE", help="Memory on each node, e.g. 16G.  [default: no limit]")
@click.option("--image", help="Container image, on an engine that runs jobs in allocations of their own.")
@click.option("--account", help="Account to charge, on an engine that runs jobs in allocations of their own.")
@click.option(
    "--retries",
    type=int,
    metavar="N",
    help="Tries after a crash of its own.  [default: 3, and none if it failed within 30 s]",
)
@click.option(
    "--notify",
    multiple=True,
    metavar="URL|mail:ADDRESS",
    help="Send a notice of the job's end to this address; repeatable.",
)
@waiting_options
@click.option("--ship", "shipped", is_flag=True, help="Send the working folder's files, and run the job in a copy.")
@click.option("-n", "--count", default=1, metavar="N", help="Number of copies.")
@cluster_options
def submit(words: tuple[str, ...], count: int, shipped: bool, client: "Client", as_json: bool, **options: Any) -> None:
    """Submit jobs: a YAML file, an unchanged #SBATCH script, or a command after `--`. Print their ids."""
    if not 1 <= count <= _MOST:
        raise InputError("count", count, f"must be from 1 to {_MOST:,}")
    given = waiting_fields(given_fields(options), client)
    command = words_after_dashes()
    if command is not None and not words:
        jobs = [command_job(command, given)]
    elif len(words) == 1 and command is None:
        jobs = list(read(words[0], given).jobs)
    else:
        raise InputError("file", " ".join(words) or None, "give one FILE, or `--` and a command")
    if len(jobs) * count > _MOST:
        raise InputError("count", count, f"makes {len(jobs) * count:,} jobs; at most {_MOST:,} go in one submission")
    if shipped:
        jobs = ship_folders(client, jobs)
    ids = deliver(client, jobs, count)
    if as_json:
        print_json({"jobs": ids})
    else:
        say("\n".join(ids))


def words_after_dashes() -> list[str] | None:
    """The words after ``--`` on the command line of a ``TakesCommand``; None without ``--``."""
    found: list[str] | None = click.get_current_context().meta.get(_AFTER_DASHES)
    return found


def deliver(client: "Client", jobs: Sequence["Submission"], copies: int = 1) -> list[str]:
    """Submit jobs from this shell's environment; return their ids. Warn of missing limits, say how jobs stop."""
    ids = send(client, keyed([with_environment(job, os.environ) for job in jobs], copies))
    if any(job.cpus or job.memory for job in jobs):
        for note in limit_notes(client.get("/v1/nodes", list[NodeRow])):
            warn(note)
    for note in _stop_notes(jobs, ids):
        warn(note)
    return ids


def _stop_notes(jobs: Sequence["Submission"], ids: Sequence[str]) -> list[str]:
    """A line for each kind of job submitted: whether such jobs are stopped to make room for others."""
    meaning = {
        "auto": "until it saves its work it is not stopped to make room for others; it may be suspended in place",
        "yes": "may be stopped at any time to make room for others, as --preemptible says",
        "no": "is never stopped to make room for others, as --preemptible says",
    }
    kinds: dict[str, list[str]] = {}
    for at, id in enumerate(ids):
        kinds.setdefault(jobs[at % len(jobs)].preemptible, []).append(id)
    more = {kind: f" and {len(of) - 1:,} more" if len(of) > 1 else "" for kind, of in kinds.items()}
    return [f"{of[0]}{more[kind]}: {meaning[kind]}" for kind, of in kinds.items()]


def ship_folders(client: "Client", jobs: Sequence["Submission"]) -> list["Submission"]:
    """Send the working folder of each job, and let the job run in a copy of it."""
    from msgspec.structs import replace

    from shoal.cli.ship import ship

    sent: dict[tuple[str, str | None], str] = {}
    for job in jobs:
        key = job.workdir or os.getcwd(), job.tenant
        if key not in sent:
            sent[key] = ship(client, Path(key[0]), job.tenant)
    return [replace(job, workdir=None, code=sent[job.workdir or os.getcwd(), job.tenant]) for job in jobs]


def given_fields(options: dict[str, Any]) -> dict[str, Any]:
    """The fields of a submission given as options."""
    given = {name: value for name, value in options.items() if value is not None and value != ()}
    slurm = given.pop("slurm", False)
    if "kinds" in given:
        given["kinds"] = [kind.strip() for kind in given["kinds"].split(",")]
    if "workdir" in given:
        given["workdir"] = os.path.abspath(given["workdir"])
    if "memory" in given:
        given["memory"] = read_size("memory", given["memory"])
    if "env" in given:
        for pair in given["env"]:
            if "=" not in pair:
                raise InputError("env", pair, "write K=V")
        given["env"] = dict(pair.split("=", 1) for pair in given["env"])
    if slurm:
        given |= {"ranks": "node", "env": {"SHOAL_SBATCH": "{}", **given.get("env", {})}}
    return given


def command_job(command: Sequence[str], given: dict[str, Any]) -> "Submission":
    """A job that runs this command in the current folder, named after its script or program."""
    from shoal.jobspec.job_file import submission
    from shoal.jobspec.sbatch import as_name

    if not command:
        raise InputError("command", None, "nothing stands after `--`; write e.g. `shoal submit -- python train.py`")
    named = next((word for word in command if word.endswith((".py", ".sh"))), command[0])
    return submission({"name": as_name(Path(named).stem), "workdir": os.getcwd(), **given, "command": list(command)})


def with_environment(job: "Submission", environ: Mapping[str, str]) -> "Submission":
    """Add the search path and the active virtual or conda environment that the job is submitted from."""
    from msgspec.structs import replace

    sent = {name: environ[name] for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV") if environ.get(name)}
    path = environ.get("PATH", "")
    if len(path) > _MOST_PATH:
        path = path[:_MOST_PATH].rpartition(os.pathsep)[0]
    return replace(job, env={"SHOAL_SUBMIT_PATH": path, **sent, **job.env})


def read(file: str, given: dict[str, Any]) -> "JobFile":
    """Read the jobs of a file; notes on how it was read go to stderr."""
    from shoal.jobspec.job_file import read_jobs

    found = read_jobs(Path(file), folder=Path.cwd(), environ=os.environ, given=given)
    for note in found.notes:
        warn(f"{Path(file).name}: {note}")
    return found


def keyed(jobs: Sequence["Submission"], copies: int) -> list["Submission"]:
    """Return ``copies`` of each job, each with its own key, so that a submission sent twice is accepted once."""
    from msgspec.structs import replace

    def key(job: "Submission", copy: int) -> str:
        if not job.key:
            return uuid4().hex
        return job.key if copies == 1 else f"{job.key}.{copy}"

    return [replace(job, key=key(job, copy)) for copy in range(copies) for job in jobs]


def send(client: "Client", jobs: Sequence["Submission"]) -> list[str]:
    """Submit all jobs or none; return their ids in order."""
    from shoal.wire.client import Unreachable
    from shoal.wire.messages import SubmissionBatch, Submitted

    def once() -> list[str]:
        if len(jobs) == 1:
            return client.post("/v1/jobs", jobs[0], Submitted).jobs
        return client.post(
            "/v1/jobs/batch", SubmissionBatch(list(jobs)), Submitted, timeout=_BATCH_TIMEOUT_SECONDS
        ).jobs

    try:
        return once()
    except Unreachable:
        # The answer may be lost rather than the request; the same keys make a second request harmless.
        return once()
