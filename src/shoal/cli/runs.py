"""``shoal policies``, ``shoal report`` and ``shoal replay``."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from shoal.cli.output import json_option, print_json, say, terminal, warn
from shoal.core.errors import InputError


@click.command()
@click.argument("name", required=False)
@json_option
def policies(name: str | None, as_json: bool) -> None:
    """List every policy, its options and its paper.

    With a NAME (or path/to/file.py:Class) also its tuning constants and the reasons it gives.
    """
    from shoal.policy.registry import POLICIES

    if name is not None:
        _show_policy(name, as_json)
        return
    if as_json:
        print_json([_policy_row(name) for name in POLICIES])
        return
    for known, entry in POLICIES.items():
        options = ", ".join(f"{key}={_shown(default)}" for key, (_, default) in entry.options().items())
        click.echo(f"{known:<13} {entry.summary}")
        click.echo(f"{'':<13} {entry.paper}" + (f"; options: {options}" if options else ""))


def _policy_row(spec: str) -> dict[str, Any]:
    from shoal.policy.registry import POLICIES, find_policy, options_of

    name, policy, _ = find_policy(spec)
    entry = POLICIES.get(name)
    return {
        "name": name,
        "summary": entry.summary if entry else (policy.__doc__ or "").partition("\n")[0],
        "paper": entry.paper if entry else name.partition(":")[0],
        "options": {key: default for key, (_, default) in options_of(policy).items()},
    }


def _show_policy(spec: str, as_json: bool) -> None:
    from shoal.core.reasons import GENERIC
    from shoal.policy.registry import find_policy, reasons_of
    from shoal.policy.tuning import constants_of

    row, (_, policy, _) = _policy_row(spec), find_policy(spec)
    constants, reasons = constants_of(policy), reasons_of(policy)
    if as_json:
        row["constants"] = {key: constant._asdict() for key, constant in constants.items()}
        row["reasons"] = [
            {"name": r.name, "code": int(r.code), "template": r.text, "numbers": list(r.numbers)} for r in reasons
        ]
        print_json(row)
        return
    click.echo(f"{row['name']}: {row['summary']}\n{row['paper']}")
    _section("options", [f"{key} = {_shown(default)}" for key, default in row["options"].items()])
    _section("constants", [f"{key} = {c.value:g}: {c.meaning}" for key, c in constants.items()])
    _section("reasons", [f"{r.name}: {r.outline}" for r in reasons])
    click.echo(f"\nEvery policy may also give {', '.join(r.name for r in GENERIC)}.")


def _section(title: str, lines: list[str]) -> None:
    if lines:
        click.echo(f"\n{title}")
    for line in lines:
        click.echo(f"  {line}")


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return "/".join(f"{v:g}" for v in value)
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


@click.command()
@click.argument("directories", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--html", "html_path", type=click.Path(path_type=Path), metavar="FILE", help="Write a page with charts.")
@click.option("--baseline", metavar="POLICY", help="Compare with this policy; the first one by default.")
@json_option
def report(directories: tuple[Path, ...], html_path: Path | None, baseline: str | None, as_json: bool) -> None:
    """Compare finished runs in tables and a page with charts, or list what happened to each job of a live cluster."""
    from shoal.report.compare import compare
    from shoal.report.files import find_runs, is_home
    from shoal.report.tables import table

    homes = [directory for directory in directories if is_home(directory)]
    if homes:
        if len(homes) < len(directories) or html_path is not None or baseline is not None:
            hint = "is the home of a live cluster, reported job by job; name only such, without --html or --baseline"
            raise InputError("run", str(homes[0]), hint)
        _print_stories(homes, as_json)
        return
    runs = find_runs(directories)
    comparisons = compare(runs, baseline)
    if html_path is not None:
        from shoal.report.html import write_page

        write_page(runs, html_path, baseline)
        warn(f"wrote {html_path}")
    if as_json:
        print_json([c.as_dict() for c in comparisons])
        return
    for comparison in comparisons:
        terminal().print(table(comparison))


def _print_stories(homes: Sequence[Path], as_json: bool) -> None:
    from shoal.scenario.replay import policies_of, read_stories

    found = {home: read_stories(home) for home in homes}
    if as_json:
        rows = [
            {
                "home": str(home),
                "jobs": [story.document() for story in stories],
                "decides_otherwise": difference or None,
            }
            for home, (stories, difference) in found.items()
        ]
        print_json(rows)
        return
    for home, (stories, difference) in found.items():
        policy = _in_turn(policies_of(home))
        count = f"{len(stories)} job{'s' * (len(stories) != 1)}"
        say(f"{home}: {count} under {policy}; times since the journal began")
        for story in stories:
            first, *rest = story.lines()
            say("\n    ".join([f"  {first}", *rest]))
        if difference:
            warn(f"{home}: the reasons for waiting end where they cannot be derived again: {difference}")


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
        f"{journal}: {derived.decisions:,} decisions of {_in_turn(decided)} derived again from "
        f"{derived.events:,} events, {derived.commands:,} commands, up to t = {derived.now:,.1f} s: no difference"
    )


def _in_turn(policies: Sequence[tuple[str, float]]) -> str:
    """Return the names of policies that decided one after the other: ``las, then fifo from t = 5.0 s``."""
    (first, _), *later = policies
    return ", ".join([first, *(f"then {policy} from t = {since:,.1f} s" for policy, since in later)])
