"""The command line. With ``--json`` a command prints one JSON document on stdout; messages go to stderr."""

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from shoal import __version__
from shoal.core.errors import ShoalError, nearest
from shoal.core.printable import printable


class _Entry(NamedTuple):
    """Where a command is, ``module:name``, and its line in ``shoal --help``."""

    where: str
    summary: str


_SIMULATION: Mapping[str, _Entry] = {
    "simulate": _Entry("shoal.cli.simulate:simulate", "Run policies on a workload in the simulator and compare them."),
    "advise": _Entry("shoal.cli.advise:advise", "Simulate a Slurm cluster's own history under other policies."),
    "shadow": _Entry("shoal.cli.shadow:shadow", "Watch an engine's queue, then simulate it under other policies."),
    "solve": _Entry("shoal.research.commands.solve:solve", "Let a policy solve the allocation problem in a file."),
    "workload": _Entry("shoal.cli.workload:workload", "Generate, import or describe workloads."),
    "policies": _Entry("shoal.cli.policies:policies", "List every policy, its options and its paper."),
    "report": _Entry("shoal.cli.report:report", "Compare finished runs: tables, and a page with charts."),
    "replay": _Entry(
        "shoal.cli.replay:replay", "Derive every decision of a journal again; fail at the first difference."
    ),
    "repro": _Entry(
        "shoal.research.commands.repro:repro", "Reproduce papers' tables and figures; show the differences."
    ),
    "bench": _Entry("shoal.research.commands.bench:bench", "Measure the speed table of docs/benchmarks.md."),
    "demo": _Entry("shoal.cli.demo:demo", "Train eight small jobs under two policies on this machine, and compare."),
    "completion": _Entry("shoal.cli.completion:completion", "Print a shell completion script."),
}
_LIVE: Mapping[str, _Entry] = {
    "up": _Entry("shoal.cli.up:up", "Run a cluster on this machine until Ctrl-C."),
    "serve": _Entry("shoal.cli.up:serve", "Run the control plane of a cluster of several machines."),
    "agent": _Entry("shoal.cli.agent:agent", "Run the agent of one node."),
    "submit": _Entry("shoal.cli.submit:submit", "Submit jobs: a file, an #SBATCH script, or a command after `--`."),
    "sbatch": _Entry("shoal.cli.sbatch:sbatch", "Submit a batch script with the options of Slurm's sbatch."),
    "search": _Entry("shoal.cli.search:search", "Search over hyper-parameters: train trials, stop the worse ones."),
    "queue": _Entry("shoal.cli.queue:queue", "List running and waiting jobs with reasons and expected starts."),
    "why": _Entry("shoal.cli.job:why", "Explain a job's state in one sentence, and what would change it."),
    "job": _Entry("shoal.cli.job:job", "Show everything about one job."),
    "logs": _Entry("shoal.cli.logs:logs", "Print a job's output; with -f follow it."),
    "run": _Entry("shoal.cli.run:run", "Submit a command, wait for it and print its output; --pty: on this terminal."),
    "exec": _Entry("shoal.cli.attach:exec_", "Run a command inside a running job."),
    "attach": _Entry("shoal.cli.attach:attach", "Open a shell inside a running job."),
    "cancel": _Entry("shoal.cli.verbs:cancel", "Cancel jobs: by name or id, of an array, in a state, or all of yours."),
    "hold": _Entry("shoal.cli.verbs:hold", "Keep jobs from starting until they are released."),
    "release": _Entry("shoal.cli.verbs:release", "Release held jobs."),
    "requeue": _Entry("shoal.cli.verbs:requeue", "Stop running jobs and put them back into the queue."),
    "priority": _Entry("shoal.cli.verbs:priority", "Set the priority of jobs among your jobs."),
    "resize": _Entry("shoal.cli.job:resize", "Change the number of GPUs a job asks for."),
    "nodes": _Entry("shoal.cli.nodes:nodes", "List the nodes and the jobs on them."),
    "share": _Entry("shoal.cli.nodes:share", "Show GPUs held and GPU-hours used by tenant."),
    "policy": _Entry("shoal.cli.policy:policy", "Show or switch the cluster's policy, or try another in its shadow."),
    "quota": _Entry("shoal.cli.quota:quota", "Set or list the quotas of tenants."),
    "acct": _Entry("shoal.cli.nodes:acct", "List ended jobs and the GPU-hours they used."),
    "whatif": _Entry("shoal.cli.whatif:whatif", "Simulate the live cluster with other policies, more nodes or a job."),
    "web": _Entry("shoal.cli.web:web", "Print a link to the cluster's page that logs your browser in."),
    "journal": _Entry("shoal.cli.journal:journal", "Salvage the records of a damaged journal."),
    "token": _Entry("shoal.cli.token:token", "Create, list or revoke tokens."),
}
_COMMANDS = {**_SIMULATION, **_LIVE}
_RESUMABLE = {"simulate", "demo"}

_EXTRA_OF_PACKAGE = {
    "numpy": "sim",
    "scipy": "sim",
    "pyarrow": "sim",
    "highspy": "sim",
    "starlette": "server",
    "uvicorn": "server",
    "prometheus_client": "server",
    "plotly": "report",
    "torch": "torch",
    "optuna": "hpo",
    "cvxpy": "research",
}
_EXTRA_OF_COMMAND = {"up": "server", "serve": "server", "report": "report", "repro": "research", "bench": "research"}
"""Commands of which one extra contains every package they need."""


class _LazyGroup(click.Group):
    """A group that imports a command when it is called: `shoal --help` costs no more than click."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of `--help`."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; None for an unknown name."""
        if cmd_name not in _COMMANDS:
            return None
        module, name = _COMMANDS[cmd_name].where.split(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list in `--help` without importing the commands."""
        for title, commands in (("Simulation", _SIMULATION), ("A live cluster", _LIVE)):
            with formatter.section(title):
                formatter.write_dl([(name, entry.summary) for name, entry in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete command names without importing the commands."""
        found = [CompletionItem(n, help=e.summary) for n, e in _COMMANDS.items() if n.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Find a command; the error on an unknown name lists the nearest ones."""
        if args and args[0] not in _COMMANDS:
            raise click.UsageError(f"command: {args[0]!r}: {nearest(args[0], _COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=_LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True},
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
        _fail(str(error), error.exit_code)
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRA_OF_PACKAGE:
            raise
        extra = _EXTRA_OF_COMMAND.get(given[0] if given else "", _EXTRA_OF_PACKAGE[package])
        _fail(f"this command needs the package {package}: pip install 'shoal[{extra}]'", 2)
    except (KeyboardInterrupt, click.Abort):
        more = "; a sweep with --out goes on from here when run again" if _RESUMABLE & set(given[:1]) else ""
        _fail(f"stopped{more}", 130)
    except Exception as error:
        from shoal.wire.disk import is_full

        if isinstance(error, FileNotFoundError) and _folder_is_gone():
            _fail("the current folder was removed; cd to another one", 2)
        if not is_full(error):
            raise
        where = getattr(error, "filename", None)
        _fail(f"{f'{where}: ' if where else ''}the disk is full; free some space and try again", 2)


def _folder_is_gone() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _fail(text: str, code: int) -> None:
    click.echo(f"shoal: {printable(' '.join(text.split()))}", err=True)
    sys.exit(code)
