"""``shoal sbatch``: submit a batch script with the options of Slurm's sbatch."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.cli.client import cluster_options
from shoal.cli.output import print_json, say, warn
from shoal.cli.submit import deliver
from shoal.core.errors import InputError

if TYPE_CHECKING:
    from shoal.wire.client import Client

_MOST_SCRIPT_BYTES = 4 << 20


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}, options_metavar="[OPTIONS]"
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[SBATCH OPTIONS] [SCRIPT [ARGUMENT…]]")
@cluster_options
def sbatch(words: tuple[str, ...], client: "Client", as_json: bool) -> None:
    """Submit a batch script as Slurm's sbatch does: options before it override SBATCH_* variables and its directives.

    Without SCRIPT the script is read from standard input, or made from --wrap. --server, --token-file and --json come
    first. The ids of an array are joined by `:`, as --dependency takes them.
    """
    from shoal.jobspec.job_file import read_script
    from shoal.wire.batch_script import SCRIPT_VARIABLE

    options, rest = _split(words)
    text, path = _script(options, rest)
    found = read_script(
        text, path, folder=Path.cwd(), environ=os.environ, words=_without_wrap(options), arguments=rest[1:]
    )
    if not rest and SCRIPT_VARIABLE not in found.jobs[0].env:
        raise InputError("script", str(path), "is too long to be kept: write it to a file that its nodes can read")
    for note in found.notes:
        warn(f"{path.name}: {note}")
    if "--test-only" in options:
        say(f"{path.name}: {len(found.jobs)} jobs, nothing submitted")
        return
    ids = deliver(client, found.jobs)
    if as_json:
        print_json({"jobs": ids})
    else:
        say(":".join(ids) if "--parsable" in options else f"Submitted batch job {':'.join(ids)}")


def _split(words: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Return the options, with the values that follow them, and the script with its arguments."""
    from shoal.jobspec.sbatch_options import takes_word

    rest, options = list(words), []
    while rest and rest[0].startswith("-") and rest[0] != "-":
        options.append(rest.pop(0))
        if takes_word(options[-1]) and rest:
            options.append(rest.pop(0))
    return options, rest


def _without_wrap(options: list[str]) -> list[str]:
    at = next((i for i, word in enumerate(options) if word == "--wrap"), None)
    kept = options if at is None else options[:at] + options[at + 2 :]
    return [word for word in kept if not word.startswith("--wrap=")]


def _script(options: list[str], rest: list[str]) -> tuple[str, Path]:
    """Return the script's text and its path, or the name that Slurm gives to one without a file."""
    from shoal.jobspec.yaml_file import read_text

    wraps = [word.partition("=")[2] for word in options if word.startswith("--wrap=")]
    wraps += [options[i + 1] for i, word in enumerate(options[:-1]) if word == "--wrap"]
    if wraps:
        if rest:
            raise InputError("script", rest[0], "cannot be given with --wrap")
        return f"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{wraps[-1]}\n", Path("wrap")
    if rest and rest[0] != "-":
        return read_text(Path(rest[0])), Path(rest[0])
    text = sys.stdin.read(_MOST_SCRIPT_BYTES)
    if not text.startswith("#!"):
        raise InputError("script", "standard input", "does not look like a batch script: its first line must be #!…")
    return text, Path("sbatch")
