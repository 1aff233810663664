"""``shoal search``: run the search of a file on the cluster to its end and print its trials."""

import time
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.client import cluster_options, job_path, retrying
from shoal.cli.output import print_json, print_table, warn
from shoal.core.errors import InputError, ShoalError

if TYPE_CHECKING:
    from shoal.hpo.live_search import Driver
    from shoal.hpo.search import Trial
    from shoal.jobspec.search_file import SearchFile
    from shoal.wire.client import Client


class NothingFound(ShoalError):
    """The search ended and no trial has a loss."""


@click.command()
@click.argument("file")
@click.option("--poll", default=2.0, metavar="SECONDS", help="Seconds between polls of the trials.")
@click.option("--cancel", "cancels", is_flag=True, help="When interrupted, cancel the running trials.")
@cluster_options
def search(file: str, poll: float, cancels: bool, client: "Client", as_json: bool) -> None:
    """Search over hyper-parameters: train the trials of FILE, stop the worse ones, print the best."""
    from shoal.hpo.live_search import Driver
    from shoal.hpo.search import AppSearch
    from shoal.jobspec.search_file import read_search

    if not 0.01 <= poll <= 3600:
        raise InputError("poll", poll, "must be from 0.01 to 3,600 seconds")
    wanted = read_search(Path(file), folder=Path.cwd())
    _check_gang(wanted, client)
    _make_folders(wanted)

    def report(trial: int, what: str) -> None:
        warn(f"trial {trial} ({_setting(wanted, trial)}): {what}")

    driver = Driver(
        client, AppSearch.of(wanted.searcher, wanted.trials), wanted.job, report, scheduler=wanted.scheduler,
        describe=lambda trial: (_shown(wanted, trial), str(wanted.folder_of(trial) or "")),
    )  # fmt: skip
    try:
        retrying(driver.step)
        while not driver.over:
            time.sleep(poll)
            retrying(driver.step)
    except (KeyboardInterrupt, ShoalError):
        _leave(driver, cancels)
        raise
    _print(wanted, driver, as_json)
    if driver.search.best is None:
        raise NothingFound("no trial has a loss: each must print `loss NUMBER` before it ends with status 0")


def _check_gang(wanted: "SearchFile", client: "Client") -> None:
    """Refuse a gang larger than any kind of the cluster before the search begins."""
    from shoal.jobspec.yaml_file import place
    from shoal.wire.messages import NodeRow

    installed: dict[str, int] = {}
    for node in client.get("/v1/nodes", list[NodeRow]):
        installed[node.kind] = installed.get(node.kind, 0) + node.gpus
    kinds = wanted.fields.get("kinds") or list(installed)
    most = max((installed.get(kind, 0) for kind in kinds), default=0)
    if wanted.most_gpus > most:
        name, hint = "gpus" if wanted.gpus > most else "max_gpus", f"the most this cluster has of one kind is {most}"
        raise InputError(f"job.{name}", wanted.most_gpus, hint, where=place(wanted.where, name, wanted.lines))


def _make_folders(wanted: "SearchFile") -> None:
    """Create an empty folder per trial: a first leg must not find another search's checkpoint."""
    for trial in range(wanted.trials):
        folder = wanted.folder_of(trial)
        if folder is None:
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            left = next(folder.iterdir(), None)
        except OSError as error:
            raise InputError("folder", str(folder), f"cannot be made: {error.strerror}", where=wanted.where) from error
        if left is not None:
            hint = f"holds {left.name} of an earlier search: empty it, or name another"
            raise InputError("folder", str(folder), hint, where=wanted.where)


def _leave(driver: "Driver", cancels: bool) -> None:
    """List the jobs left running, or cancel them."""
    jobs = sorted(driver.running.values())
    if not jobs:
        return
    if not cancels:
        count = f"{len(jobs)} job{'s are' if len(jobs) > 1 else ' is'}"
        warn(f"{count} left to run unattended: `shoal cancel {' '.join(jobs)}` ends them")
        return
    for job in jobs:
        driver.client.call("DELETE", job_path(job), None, type(None))
    warn(f"cancelled {', '.join(jobs)}")


def _setting(wanted: "SearchFile", trial: int) -> str:
    return ", ".join(f"{name} {value}" for name, value in _shown(wanted, trial).items())


def _shown(wanted: "SearchFile", trial: int) -> dict[str, str]:
    from shoal.jobspec.search_file import in_words

    return {name: f"{v:.4g}" if isinstance(v, float) else in_words(v) for name, v in wanted.setting(trial).items()}


def _print(wanted: "SearchFile", driver: "Driver", as_json: bool) -> None:
    best, trials = driver.search.best, driver.search.trials
    begun = [n for n, trial in enumerate(trials) if trial.legs]
    if as_json:
        rows = {n: _row(wanted, n, trials[n]) for n in begun}
        found = None if best is None else rows[best]
        print_json({"app": wanted.app, "scheduler": wanted.scheduler, "best": found, "trials": list(rows.values())})
        return
    order = sorted(begun, key=lambda n: (-_trained(trials[n]), trials[n].loss if trials[n].losses else 0.0, n))
    cells = [
        (
            f"{n}{' (best)' * (n == best)}",
            _setting(wanted, n),
            f"{trials[n].loss:.6g}" if trials[n].losses else "–",
            f"{_trained(trials[n]):.0%}",
            f"{trials[n].legs}",
        )
        for n in order
    ]
    headers = ("trial", "parameters", "loss", "trained", "legs")
    print_table(f"{wanted.app}: {len(begun)} trials by {wanted.scheduler}", headers, cells)


def _trained(trial: "Trial") -> float:
    return trial.losses[-1][0] if trial.losses else 0.0


def _row(wanted: "SearchFile", number: int, trial: "Trial") -> dict[str, Any]:
    loss = trial.loss if trial.losses and isfinite(trial.loss) else None
    row = {"trial": number, "parameters": dict(wanted.setting(number)), "loss": loss}
    return {**row, "trained": _trained(trial), "legs": trial.legs}
