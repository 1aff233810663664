"""``shoal logs``: what a rank of a job printed, and prints."""

import time
from collections.abc import Iterator, Sequence
from io import StringIO
from typing import TYPE_CHECKING

import click

from shoal.cli.client import cluster_options, find_job, job_path, patiently
from shoal.cli.live_tables import state
from shoal.cli.output import json_option, print_json, warn
from shoal.core.errors import InputError
from shoal.wire.client import Refused
from shoal.wire.messages import JobDetail, LogPart

if TYPE_CHECKING:
    from shoal.wire.client import Client

_MOST = 2**18
"""Bytes asked for at a time."""

_POLL_SECONDS = 0.5


@click.command()
@click.argument("job")
@click.option("-f", "--follow", is_flag=True, help="Go on, over restarts, until the job has ended.")
@click.option("--rank", type=click.IntRange(0), default=0, show_default=True, metavar="R", help="Which rank's.")
@click.option("--incarnation", type=click.IntRange(1), metavar="K", help="Of its Kth start; of all otherwise.")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="Only the last N lines of what is there.")
@cluster_options
@json_option
def logs(
    job: str, follow: bool, rank: int, incarnation: int | None, tail: int | None, client: "Client", as_json: bool
) -> None:
    """Print what a job wrote to its standard output and error."""
    if follow and as_json:
        raise InputError("follow", True, "has no end to wait for; leave --follow or --json out")
    found = find_job(client, job)
    reader = _Reader(client, found.job.id, rank)
    if follow:
        _follow(reader, found, incarnation, tail)
        return
    if incarnation is None and found.incarnation == 0:
        raise InputError("job", found.job.id, f"has no log, as it has not started: it {found.job.reason}")
    starts = reader.logged([incarnation] if incarnation else range(1, found.incarnation + 1))
    texts = reader.texts(starts) if tail is None else reader.last(starts, tail)
    if not as_json:
        for text in texts:
            click.echo(text, nl=False)
        return
    print_json({"job": found.job.id, "incarnations": starts, "rank": rank, "text": "".join(texts)})


class _Reader:
    """Reads one rank's logs."""

    def __init__(self, client: "Client", job: str, rank: int) -> None:
        self._client = client
        self._rank = rank
        self.job = job

    def detail(self) -> JobDetail:
        """The job as it is now."""
        return patiently(lambda: self._client.get(job_path(self.job), JobDetail))

    def part(self, incarnation: int, offset: int, most: int) -> LogPart:
        """What the log holds from this byte on."""
        asked = f"incarnation={incarnation}&rank={self._rank}&offset={offset}&most={most}"
        return patiently(lambda: self._client.get(f"{job_path(self.job)}/log?{asked}", LogPart))

    def parts(self, incarnation: int, offset: int) -> Iterator[LogPart]:
        """All there is now, from this byte on."""
        while True:
            part = self.part(incarnation, offset, _MOST)
            yield part
            if part.next >= part.size or part.next <= offset:
                return
            offset = part.next

    def logged(self, starts: Sequence[int]) -> list[int]:
        """Those of these starts that have a log; where none has, why the last has not is raised."""
        found: list[int] = []
        for start in starts:
            try:
                self.part(start, 0, 1)
            except (Refused, InputError) as error:
                if (start == starts[-1] and not found) or (isinstance(error, Refused) and error.status >= 500):
                    raise
            else:
                found.append(start)
        return found

    def texts(self, starts: Sequence[int]) -> Iterator[str]:
        """What was printed in these starts, one after another."""
        return (part.text for start in starts for part in self.parts(start, 0))

    def last(self, starts: Sequence[int], lines: int) -> Sequence[str]:
        """The last so many lines of that."""
        kept: list[str] = []
        for start in reversed(starts):
            parts = self.parts(start, self.last_lines(start, lines))
            kept.insert(0, "".join(part.text for part in parts))
            lines -= len(kept[0].splitlines())
            if lines <= 0:
                break
        return kept

    def last_lines(self, incarnation: int, lines: int | None) -> int:
        """The byte where the last so many lines begin; the first one where all are wanted."""
        if lines is None:
            return 0
        size = self.part(incarnation, 0, 1).size
        window = _MOST
        while True:
            begin = max(0, size - window)
            parts = list(self.parts(incarnation, begin))
            kept = list(StringIO("".join(part.text for part in parts), newline="\n"))
            if begin == 0 or len(kept) > lines:
                tail = "".join(kept[max(0, len(kept) - lines) :])
                return max(begin, parts[-1].next - len(tail.encode()))
            window *= 4


def _follow(reader: _Reader, found: JobDetail, incarnation: int | None, tail: int | None) -> None:
    """Print as it comes. Restarts are passed through in order, so that no short life is missed."""
    current = incarnation or max(1, found.incarnation)
    offset: int | None = None
    if found.incarnation < current and found.job.ended is None:
        warn(f"{found.job.id} has not started: it {found.job.reason}")
    while True:
        growing = there = True
        try:
            offset = reader.last_lines(current, tail) if offset is None else offset
            for part in reader.parts(current, offset):
                click.echo(part.text, nl=False)
                offset, growing = part.next, part.live
        except (Refused, InputError) as error:
            # By what was known before the look: the log may have come, and the job gone, since.
            if not _may_come(found, error, current):
                raise
            there = False
        if not there or not growing:
            found = reader.detail()
            if incarnation is None and found.incarnation > current:
                current, offset, tail = current + 1, 0, None
                warn(f"{found.job.id} was started again (incarnation {current})")
                continue
            if there and (incarnation or found.job.ended is not None):
                over = f"incarnation {current}" if found.job.ended is None else f"the job, {state(found.job)}"
                warn(f"end of the log and of {over}")
                return
        time.sleep(_POLL_SECONDS)


def _may_come(found: JobDetail, error: Refused | InputError, incarnation: int) -> bool:
    """Whether to go on though this start's log could not be had: it is not begun, passed by, or its node is away."""
    if isinstance(error, Refused) and error.status >= 500:
        return found.job.ended is None
    begun = found.incarnation == incarnation and (found.job.ended is not None or found.job.state.lower() == "running")
    return not begun and (found.job.ended is None or incarnation < found.incarnation)
