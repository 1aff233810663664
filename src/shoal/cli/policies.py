"""``shoal policies``: every policy, its options, constants and reasons."""

from math import isfinite
from typing import Any

import click

from shoal.cli.output import json_option, print_json


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
        "options": {key: _plain(default) for key, (_, default) in options_of(policy).items()},
    }


def _plain(value: Any) -> Any:
    """Return a default for JSON, which has no infinity: as it is written in a policy's options."""
    return str(value) if isinstance(value, float) and not isfinite(value) else value


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
