"""``shoal why``, ``job`` and ``resize``."""

import shlex
import time
from typing import TYPE_CHECKING

import click

from shoal.cli.client import cluster_options, find_job, job_path
from shoal.cli.completion import complete_job
from shoal.cli.live_tables import count, facts, hours, spread, state
from shoal.cli.output import listing, print_json, say, terminal
from shoal.core.units import span
from shoal.wire.messages import Reshape

if TYPE_CHECKING:
    from shoal.wire.client import Client
    from shoal.wire.messages import JobDetail


@click.command()
@click.argument("job", shell_complete=complete_job)
@click.option("--detail", is_flag=True, help="Add the time of the last decision and the job's history.")
@cluster_options
def why(job: str, detail: bool, client: "Client", as_json: bool) -> None:
    """Explain JOB's state in one sentence, with numbers, and what would change it."""
    found = find_job(client, job)
    if as_json:
        row = found.job
        answer: dict[str, object] = {
            "id": row.id,
            "state": row.state,
            "decision": found.decision,
            "change": found.change,
            "stop": found.stop,
            "length": found.length,
        }
        answer |= {"position": row.position, "start": row.start, "end": row.end}
        print_json({**answer, "decided": found.decided, "story": found.story} if detail else answer)
        return
    say(sentence(found))
    if detail:
        terminal().print(f"\nIts last decision was at {_clock(found.decided)}; so far {_usage(found)}.\n")
        _print_history(found)


def sentence(found: "JobDetail") -> str:
    """A job's state, its reason and what would change it, as one sentence."""
    row = found.job
    if row.ended is not None:
        cause = f": {row.reason}" if row.reason not in ("", row.state) else ""
        return f"{row.id} has ended ({state(row)}, after {span(row.ended - row.submitted)}){cause}."
    parts = [f"{row.id} {(found.decision or row.reason).rstrip('.')}"]
    if row.start is not None:
        parts.append(f"it is expected to start {spread(row.start)}")
    if found.length:
        parts.append(f"{'if it keeps its GPUs it has' if row.end else 'it has'} {found.length}")
    elif row.end is not None:
        parts.append(f"if it keeps its GPUs it is expected to end {spread(row.end)}")
    if found.change:
        parts.append(found.change.rstrip("."))
    if found.stop:
        parts.append(found.stop)
    return "; ".join(parts) + "."


def _usage(found: "JobDetail") -> str:
    used = f"{hours(found.gpu_seconds)} GPU-hours"
    if found.lost_gpu_seconds >= 1:
        used += f", of them {hours(found.lost_gpu_seconds)} lost"
    return f"{count(found.incarnation, 'start')}, {count(found.crashes, 'crash').replace('crashs', 'crashes')}, {used}"


def _print_history(found: "JobDetail") -> None:
    begun = found.job.submitted
    rows = [(_clock(moment.at), f"+{span(max(0.0, moment.at - begun))}", moment.what) for moment in found.story]
    if rows:
        terminal().print(listing(("when", "after>", "what happened"), rows))


def _clock(unix_seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_seconds))


@click.command()
@click.argument("job", shell_complete=complete_job)
@cluster_options
def job(job: str, client: "Client", as_json: bool) -> None:
    """Show everything about JOB."""
    found = find_job(client, job)
    if as_json:
        print_json(found)
        return
    terminal().print(facts(_facts(found)))
    say(sentence(found))


def _facts(found: "JobDetail") -> list[tuple[str, str]]:
    row = found.job
    done = f"{row.done:,.6g}" + (f" of {row.work:,.6g} ({min(1.0, row.done / row.work):.0%})" if row.work else "")
    kind = f" {row.kind}" if row.kind else ""
    return [
        ("job", row.id),
        ("tenant", row.tenant),
        ("state", state(row)),
        (
            "GPUs",
            f"{row.gpus_held}{kind} of {row.gpus_wanted} wanted" + (f" on {', '.join(row.nodes)}" * bool(row.nodes)),
        ),
        ("engine", "; ".join(found.engine)),
        ("command", shlex.join(found.command)),
        ("runs in", found.workdir or "a folder of its own"),
        *(("tracked at", link) for link in found.links),
        ("ranks", f"one for each {found.ranks}"),
        ("submitted", _clock(row.submitted)),
        ("started", _clock(row.started) if row.started is not None else ""),
        ("ended", _clock(row.ended) if row.ended is not None else ""),
        ("expected", f"starts {spread(row.start)}" if row.start else f"ends {spread(row.end)}" if row.end else ""),
        ("length", found.length),
        ("work done", done + (f", at {found.rate:,.4g} a second" if found.rate else "")),
        ("so far", _usage(found)),
        ("warned", f"{found.grace:g} s before it is stopped"),
    ]


@click.command()
@click.argument("job", shell_complete=complete_job)
@click.argument("gpus", type=int)
@click.option("--min", "min_gpus", type=int, metavar="N", help="Fewest GPUs it can run on.  [default: GPUS]")
@click.option("--max", "max_gpus", type=int, metavar="N", help="Most GPUs it can use.  [default: GPUS]")
@cluster_options
def resize(job: str, gpus: int, min_gpus: int | None, max_gpus: int | None, client: "Client", as_json: bool) -> None:
    """Change the number of GPUs JOB asks for; it moves when the policy next grants it GPUs."""
    row = find_job(client, job, only=True).job
    client.call("PATCH", job_path(row.id), Reshape(gpus, min_gpus, max_gpus), type(None))
    if as_json:
        print_json({"job": row.id, "gpus": gpus, "min_gpus": min_gpus, "max_gpus": max_gpus})
    else:
        say(f"{row.id} now wants {count(gpus, 'GPU')}, where it wanted {row.gpus_wanted:,}")
