"""``shoal replay``: derive every decision of a journal again."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from shoal.cli.output import json_option, print_json, say, warn


@click.command()
@click.argument("journal", type=click.Path(path_type=Path))
@click.option("--throughputs", metavar="FILE", help="The run's file of speeds, if it has moved since.")
@click.option(
    "--policy",
    "policy_files",
    multiple=True,
    metavar="FILE:Class",
    help="Policy file to import for one that the journal names; repeatable, in the journal's order.",
)
@json_option
def replay(journal: Path, throughputs: str | None, policy_files: tuple[str, ...], as_json: bool) -> None:
    """Derive every decision of a journal again; fail at the first difference.

    A policy file that the journal names is not imported: give it with --policy.
    """
    from shoal.scenario.replay import policies_of, replay_file

    def show_progress(decisions: int) -> None:
        click.echo(f"\r{decisions:,} decisions", nl=False, err=True)

    interactive = sys.stderr.isatty()
    progress = show_progress if interactive else None
    derived, file, settings = replay_file(
        journal, throughputs=throughputs, policy_files=policy_files, progress=progress
    )
    decided = policies_of(journal)
    if interactive:
        click.echo("\r", nl=False, err=True)
    if file.cut is not None:
        warn(f"{journal}: {file.cut}; the records before it were replayed")
    if as_json:
        print_json(
            {
                "journal": str(journal),
                "policy": settings["policy"],
                "policies": [{"policy": policy, "since": since} for policy, since in decided],
                "records": file.records,
                "decisions": derived.decisions,
                "events": derived.events,
                "commands": derived.commands,
                "now": derived.now,
                "cut": file.cut,
                "agrees": True,
            }
        )
        return
    say(
        f"{journal}: {derived.decisions:,} decisions of {in_turn(decided)} derived again from "
        f"{derived.events:,} events, {derived.commands:,} commands, up to t = {derived.now:,.1f} s: no difference"
    )


def in_turn(policies: Sequence[tuple[str, float]]) -> str:
    """Return the names of policies that decided one after the other: ``las, then fifo from t = 5.0 s``."""
    (first, _), *later = policies
    return ", ".join([first, *(f"then {policy} from t = {since:,.1f} s" for policy, since in later)])
