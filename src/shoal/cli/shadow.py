"""``shoal shadow``: watch an engine's own queue and report what other policies would have done; it changes nothing."""

import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.cli.advise import policies_option, print_advice
from shoal.cli.output import json_option, warn
from shoal.core.spec_text import split_name

if TYPE_CHECKING:
    from shoal.provider.queue_watch import QueueWatch

_WATCHES = {engine: f"shoal.provider.{engine}.shadow" for engine in ("kubernetes", "ray", "slurm")}
"""By engine, the module whose function ``make_watch`` returns the watch of its queue."""


@click.command()
@click.option(
    "--on",
    "engine",
    metavar="ENGINE",
    required=True,
    help="The engine: slurm, ray or kubernetes, with options such as slurm:partition=NAME.",
)
@click.option("--hours", type=click.FloatRange(0.0), default=24.0, help="Hours to watch; Ctrl-C ends it sooner.")
@click.option(
    "--period", type=click.FloatRange(1.0, 300.0), default=60.0, help="Seconds between two queries of the engine."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("shadow.txt"),
    help="File for the jobs seen, in the form of sacct output; an existing one is continued.",
)
@policies_option
@json_option
def shadow(engine: str, hours: float, period: float, out: Path, policies: tuple[str, ...], as_json: bool) -> None:
    """Watch the jobs of an engine, then simulate them under other policies; nothing of the engine is changed."""
    from shoal.provider.protocol import EngineAway

    name, options = split_name("on", engine, _WATCHES)
    watch: QueueWatch = import_module(_WATCHES[name]).make_watch(options, out)
    watch.resume()
    ends, away = time.monotonic() + 3600 * hours, False
    try:
        while True:
            try:
                watch.look()
                away = False
            except EngineAway as error:
                if not away:
                    warn(f"{name}: {error}; looking again every {period:g} s")
                away = True
            if time.monotonic() + period > ends:
                break
            time.sleep(period)
    except KeyboardInterrupt:
        warn(f"stopped with {len(watch.jobs):,} jobs in {out}")
    print_advice(out, policies, as_json=as_json)
