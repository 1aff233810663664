"""The command line: thin commands over the app, one JSON document on stdout with ``--json``, messages on stderr."""

import importlib
import sys
from collections.abc import Sequence
from typing import Any

import click

from shoal import __version__
from shoal.core.errors import ShoalError, nearest

_COMMANDS = {
    "simulate": "shoal.cli.simulate:simulate",
    "solve": "shoal.research.commands.solve:solve",
    "workload": "shoal.cli.workload:workload",
    "policies": "shoal.cli.runs:policies",
    "report": "shoal.cli.runs:report",
    "replay": "shoal.cli.runs:replay",
    "repro": "shoal.research.commands.repro:repro",
    "bench": "shoal.research.commands.bench:bench",
    "demo": "shoal.cli.demo:demo",
    "up": "shoal.cli.up:up",
    "serve": "shoal.cli.up:serve",
    "agent": "shoal.cli.up:agent",
    "submit": "shoal.cli.submit:submit",
    "search": "shoal.cli.search:search",
    "queue": "shoal.cli.queue:queue",
    "why": "shoal.cli.job:why",
    "job": "shoal.cli.job:job",
    "logs": "shoal.cli.logs:logs",
    "cancel": "shoal.cli.job:cancel",
    "resize": "shoal.cli.job:resize",
    "nodes": "shoal.cli.nodes:nodes",
    "share": "shoal.cli.nodes:share",
    "acct": "shoal.cli.nodes:acct",
    "whatif": "shoal.cli.whatif:whatif",
    "token": "shoal.cli.token:token",
}
_SUMMARIES = {
    "simulate": "Run policies on a workload in the simulator and compare them.",
    "solve": "Solve one decision on a written-down problem.",
    "workload": "Generate, import or describe workloads.",
    "policies": "List every policy, its options and its paper.",
    "report": "Compare finished runs: tables, and a page with charts.",
    "replay": "Derive every decision of a journal again; fail at the first difference.",
    "repro": "Make a paper's tables and figures again: theirs, ours, the difference.",
    "bench": "Measure the speed table of docs/benchmarks.md.",
    "demo": "Compare six policies on a built-in mix and write a page about it.",
    "up": "Run a cluster on this machine until Ctrl-C.",
    "serve": "Run the control plane of a cluster of several machines.",
    "agent": "Run the agent of one node.",
    "submit": "Submit jobs: a file, an #SBATCH script, or a command after `--`.",
    "search": "Search over hyper-parameters: train the trials of a file, give the worse ones up.",
    "queue": "Show who runs, who waits, why, and until about when.",
    "why": "Say what holds a job, and what would change it.",
    "job": "Show everything about one job.",
    "logs": "Print what a job wrote, and with -f what it writes.",
    "cancel": "Cancel jobs.",
    "resize": "Ask for another number of GPUs for a job.",
    "nodes": "List the nodes and what runs there.",
    "share": "Show what each tenant holds and has had.",
    "acct": "List ended jobs and what they took.",
    "whatif": "Simulate the live cluster onward: other policies, more machines, one more job.",
    "token": "Make, list or revoke tokens.",
}
_RESUMABLE = {"simulate", "demo"}


class _LazyGroup(click.Group):
    """A group that imports a command when it is called: `shoal --help` costs no more than click."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order people meet them."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now."""
        where = _COMMANDS.get(cmd_name)
        if where is None:
            return None
        module, name = where.split(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in `--help`, without importing what it lists."""
        live = list(_COMMANDS).index("up")
        for title, names in (("Simulation", list(_COMMANDS)[:live]), ("A live cluster", list(_COMMANDS)[live:])):
            with formatter.section(title):
                formatter.write_dl([(name, _SUMMARIES[name]) for name in names])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Find a command; an unknown one is told its nearest neighbours."""
        if args and args[0] not in _COMMANDS:
            raise click.UsageError(f"command: {args[0]!r}: {nearest(args[0], _COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=_LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="shoal")
@click.pass_context
def shoal(ctx: click.Context) -> None:
    """Schedule machine-learning training jobs on shared clusters of unequal GPUs."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(args: Sequence[str] | None = None) -> None:
    """Run a command; bad input is one line on stderr and exit code 2, never a traceback."""
    given = list(args) if args is not None else sys.argv[1:]
    try:
        code = shoal.main(args=given, prog_name="shoal", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except ShoalError as error:
        click.echo(f"shoal: {' '.join(str(error).split())}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        click.echo(f"shoal: {' '.join(error.format_message().split())}", err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        more = "; a sweep with --out goes on from here when run again" if _RESUMABLE & set(given[:1]) else ""
        click.echo(f"shoal: stopped{more}", err=True)
        sys.exit(130)
