"""``shoal logs``: the output of a rank of a job."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from shoal.cli.client import cluster_options, find_job, job_path, retrying
from shoal.cli.completion import complete_job
from shoal.cli.live_tables import state
from shoal.cli.output import json_option, log_output, print_json, warn
from shoal.core.errors import InputError
from shoal.wire.client import Refused
from shoal.wire.messages import JobDetail, LogPart

if TYPE_CHECKING:
    from shoal.wire.client import Client

_MOST = 2**18
"""Bytes read at a time."""

_MOST_LINE = 2**20
"""Bytes without a newline after which `--tail` looks no further back for the beginning of the line."""

_MOST_CHARACTER = 4
"""Most bytes of a character: fewer at the end of a block are one that was cut in two."""

_POLL_SECONDS = 0.5


@click.command()
@click.argument("job", shell_complete=complete_job)
@click.option("-f", "--follow", is_flag=True, help="Follow the output, across restarts, until the job ends.")
@click.option("--rank", type=click.IntRange(0), default=0, metavar="R", help="Rank whose output to print.")
@click.option(
    "--incarnation", type=click.IntRange(1), metavar="K", help="Only the output of the Kth start.  [default: all]"
)
@click.option("--tail", type=click.IntRange(0), metavar="N", help="Only the last N lines.")
@click.option("--raw", is_flag=True, help="Send control characters to the terminal too, beside colours.")
@cluster_options
@json_option
def logs(
    job: str,
    follow: bool,
    rank: int,
    incarnation: int | None,
    tail: int | None,
    raw: bool,
    client: "Client",
    as_json: bool,
) -> None:
    """Print JOB's standard output and error."""
    if follow and as_json:
        raise InputError("follow", True, "has no end to wait for; leave --follow or --json out")
    found = find_job(client, job)
    reader = _Reader(client, found.job.id, rank)
    if follow:
        with log_output(raw=raw) as write:
            _follow(reader, found, incarnation, tail, write)
        return
    if incarnation is None and found.incarnation == 0:
        raise InputError("job", found.job.id, f"has no log, as it has not started: it {found.job.reason}")
    starts = reader.logged([incarnation] if incarnation else range(1, found.incarnation + 1))
    texts = reader.texts(starts) if tail is None else reader.last(starts, tail)
    if not as_json:
        with log_output(raw=raw) as write:
            for text in texts:
                write(text)
        return
    print_json({"job": found.job.id, "incarnations": starts, "rank": rank, "text": "".join(texts)})


class _Reader:
    """Reads the logs of one rank."""

    def __init__(self, client: "Client", job: str, rank: int) -> None:
        self._client = client
        self._rank = rank
        self.job = job

    def detail(self) -> JobDetail:
        """The job's current state."""
        return retrying(lambda: self._client.get(job_path(self.job), JobDetail))

    def part(self, incarnation: int, offset: int, most: int) -> LogPart:
        """At most ``most`` bytes of the log from ``offset``."""
        asked = f"incarnation={incarnation}&rank={self._rank}&offset={offset}&most={most}"
        return retrying(lambda: self._client.get(f"{job_path(self.job)}/log?{asked}", LogPart))

    def parts(self, incarnation: int, offset: int) -> Iterator[LogPart]:
        """Yield the log from ``offset`` to its current end."""
        while True:
            part = self.part(incarnation, offset, _MOST)
            yield part
            if part.next >= part.size or part.next <= offset:
                return
            offset = part.next

    def logged(self, starts: Sequence[int]) -> list[int]:
        """The starts that have a log; where none has, the last one's error is raised."""
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
        """The output of these starts, in order."""
        return (part.text for start in starts for part in self.parts(start, 0))

    def last(self, starts: Sequence[int], lines: int) -> Iterator[str]:
        """The last ``lines`` lines of the output of these starts."""
        tails: list[tuple[int, _Tail]] = []
        for start in reversed(starts):
            tails.insert(0, (start, self.find_tail(start, lines)))
            lines -= tails[0][1].lines
            if lines <= 0:
                break
        for start, tail in tails:
            yield from (text for text, _ in self.from_tail(start, tail))

    def find_tail(self, incarnation: int, lines: int | None) -> "_Tail":
        """Find where the last ``lines`` lines begin (None: all), reading backwards and no further than needed.

        A line longer than ``_MOST_LINE`` is not read to its beginning: the tail then begins inside it.
        """
        if lines is None:
            return _Tail(0)
        end = begin = self.part(incarnation, 0, 1).size
        newlines, unbroken = 0, 0
        while begin > 0 and lines > 0:
            after, (begin, text) = begin, self._block(incarnation, begin)
            newlines += text.count("\n") - (after == end and text.endswith("\n"))  # the last one begins no line
            if newlines >= lines:
                return _Tail(begin, skip=newlines - lines + 1, lines=lines)
            unbroken = 0 if "\n" in text else unbroken + after - begin
            if unbroken > _MOST_LINE:
                return _Tail(begin, lines=lines, note="[shoal: the beginning of this line is cut]\n")
        return _Tail(begin, lines=newlines + 1 if end else 0)

    def _block(self, incarnation: int, end: int) -> tuple[int, str]:
        """The block of the log before byte ``end``: where it begins, and its text, over a place that was cut."""
        at = begin = max(0, end - _MOST)
        text = ""
        while at < end:
            part = self.part(incarnation, at, end - at)
            begin, text = min(begin, part.offset), text + part.text
            if part.next <= at or end - part.next < _MOST_CHARACTER:
                break
            at = part.next
        return begin, text

    def from_tail(self, incarnation: int, tail: "_Tail") -> Iterator[tuple[str, LogPart]]:
        """Yield the text from the tail on to the log's current end, with the parts it came in."""
        skip, note = tail.skip, tail.note
        for part in self.parts(incarnation, tail.begin):
            text = note + (part.text.lstrip("\ufffd") if note else part.text)
            note = ""
            while skip and text:
                _, newline, text = text.partition("\n")
                skip -= bool(newline)
            yield text, part


class _Tail(NamedTuple):
    """The end of a log: the byte to read from, the newlines to pass over, and the lines that follow."""

    begin: int
    skip: int = 0
    lines: int = 0
    note: str = ""


def _follow(
    reader: _Reader, found: JobDetail, incarnation: int | None, tail: int | None, write: Callable[[str], None]
) -> None:
    """Print output as it arrives, start after start in order, so that none is missed."""
    current = incarnation or max(1, found.incarnation)
    offset: int | None = None
    if found.incarnation < current and found.job.ended is None:
        warn(f"{found.job.id} has not started: it {found.job.reason}")
    while True:
        growing = there = True
        try:
            begin = reader.find_tail(current, tail) if offset is None else _Tail(offset)
            for text, part in reader.from_tail(current, begin):
                write(text)
                offset, growing = part.next, part.live
        except (Refused, InputError) as error:
            # Judged by the state before the read: the log may have appeared, and the job ended, since.
            if not _may_appear(found, error, current):
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


def _may_appear(found: JobDetail, error: Refused | InputError, incarnation: int) -> bool:
    """Whether to retry a failed read: the start has not begun or was skipped, or its node is unreachable."""
    if isinstance(error, Refused) and error.status >= 500:
        return found.job.ended is None
    begun = found.incarnation == incarnation and (found.job.ended is not None or found.job.state.lower() == "running")
    return not begun and (found.job.ended is None or incarnation < found.incarnation)
