"""``shoal logs``: the output of the ranks of a job."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from shoal.cli.client import cluster_options, find_job, job_path, retrying
from shoal.cli.completion import complete_job
from shoal.cli.live_tables import state
from shoal.cli.output import log_output, print_json, warn
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

_MOST_HELD = 4096
"""Characters of an incomplete line that are held back before they are printed with their rank's label."""

_POLL_SECONDS = 0.5


@click.command()
@click.argument("job", shell_complete=complete_job)
@click.option("-f", "--follow", is_flag=True, help="Follow the output, across restarts, until the job ends.")
@click.option(
    "--rank", type=click.IntRange(0), metavar="R", help="Only this rank's output.  [default: all, lines labelled [R]]"
)
@click.option(
    "--incarnation", type=click.IntRange(1), metavar="K", help="Only the output of the Kth start.  [default: all]"
)
@click.option("--tail", type=click.IntRange(0), metavar="N", help="Only the last N lines.")
@click.option("--raw", is_flag=True, help="Send all control characters to the terminal, not colours only.")
@cluster_options
def logs(
    job: str,
    follow: bool,
    rank: int | None,
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
    reader = _Reader(client, found.job.id, rank or 0)
    if follow:
        with log_output(raw=raw) as write:
            _follow(reader, found, incarnation, tail, write, all_ranks=rank is None)
        return
    if incarnation is None and found.incarnation == 0:
        raise InputError("job", found.job.id, f"has no log, as it has not started: it {found.job.reason}")
    starts = reader.logged([incarnation] if incarnation else range(1, found.incarnation + 1))
    texts = _all_ranks(reader, starts, tail) if rank is None else reader.chosen([*starts], tail)
    if not as_json:
        with log_output(raw=raw) as write:
            for text in texts:
                write(text)
        return
    shown = 0 if rank is None and max(starts.values()) == 1 else rank
    print_json({"job": found.job.id, "incarnations": [*starts], "rank": shown, "text": "".join(texts)})


def follow_job(client: "Client", found: JobDetail) -> None:
    """Print the output of all ranks of a job as it arrives, until the job ends."""
    with log_output(raw=False) as write:
        _follow(_Reader(client, found.job.id, 0), found, None, None, write, all_ranks=True, say_end=False)


def _all_ranks(first: "_Reader", starts: dict[int, int], tail: int | None) -> Iterator[str]:
    """The output of all ranks, rank after rank; labelled if there are several."""
    if max(starts.values()) == 1:
        yield from first.chosen([*starts], tail)
        return
    for rank in range(max(starts.values())):
        label = _Label(rank)
        try:
            for text in first.of_rank(rank).chosen([start for start, ranks in starts.items() if rank < ranks], tail):
                yield label.feed(text)
        except (Refused, InputError) as error:
            warn(f"rank {rank}: {error}")
        yield label.finish()


class _Label:
    """Puts ``[rank]`` before each line of a rank's output; a line is passed on when it is complete or too long."""

    def __init__(self, rank: int) -> None:
        self._label = f"[{rank}] "
        self._held = ""

    def feed(self, text: str) -> str:
        """The lines that this piece of output completes, labelled; a carriage return ends a line too."""
        text = self._held + text
        # A carriage return at the very end may be followed by a newline in the next piece.
        end = max(text.rfind("\n"), text[:-1].rfind("\r")) + 1
        lines, self._held = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)", text[:end]), text[end:]
        if len(self._held) > _MOST_HELD:
            lines, self._held = [*lines, f"{self._held}\n"], ""
        return "".join(self._label + line for line in lines)

    def finish(self) -> str:
        """The last line, if it has no newline."""
        held, self._held = self._held, ""
        return f"{self._label}{held}\n" if held else ""


class _Reader:
    """Reads the logs of one rank of a job."""

    def __init__(self, client: "Client", job: str, rank: int) -> None:
        self._client = client
        self._rank = rank
        self.job = job

    def of_rank(self, rank: int) -> "_Reader":
        """A reader of another rank of the same job."""
        return _Reader(self._client, self.job, rank)

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

    def logged(self, starts: Sequence[int]) -> dict[int, int]:
        """The starts that have a log, with their numbers of ranks; where none has, the last one's error is raised."""
        found: dict[int, int] = {}
        for start in starts:
            try:
                found[start] = self.part(start, 0, 1).ranks
            except (Refused, InputError) as error:
                if (start == starts[-1] and not found) or (isinstance(error, Refused) and error.status >= 500):
                    raise
        return found

    def chosen(self, starts: Sequence[int], tail: int | None) -> Iterator[str]:
        """The output of these starts, in order, or its last ``tail`` lines."""
        return self.texts(starts) if tail is None else self.last(starts, tail)

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
    reader: _Reader,
    found: JobDetail,
    incarnation: int | None,
    tail: int | None,
    write: Callable[[str], None],
    *,
    all_ranks: bool,
    say_end: bool = True,
) -> None:
    """Print output as it arrives, start after start in order, so that none is missed."""
    current = incarnation or max(1, found.incarnation)
    followed = _Followed(reader, current, tail, all_ranks)
    if found.incarnation < current and found.job.ended is None:
        warn(f"{found.job.id} has not started: it {found.job.reason}")
    while True:
        growing = there = True
        try:
            growing = followed.print_new(write)
        except (Refused, InputError) as error:
            # Judged by the state before the read: the log may have appeared, and the job ended, since.
            if not _may_appear(found, error, current):
                raise
            there = False
        if not there or not growing:
            found = reader.detail()
            if incarnation is None and found.incarnation > current:
                followed.finish(write)
                current, tail = current + 1, None
                followed = _Followed(reader, current, tail, all_ranks)
                warn(f"{found.job.id} was started again (incarnation {current})")
                continue
            if there and (incarnation or found.job.ended is not None):
                followed.finish(write)
                if not say_end:
                    return
                over = f"incarnation {current}" if found.job.ended is None else f"the job, {state(found.job)}"
                warn(f"end of the log and of {over}")
                return
        time.sleep(_POLL_SECONDS)


class _Followed:
    """The logs of one start that are being followed: of one rank, or of all as soon as their number is known."""

    def __init__(self, reader: _Reader, incarnation: int, tail: int | None, all_ranks: bool) -> None:
        self._readers = {0: reader}
        self._incarnation, self._tail, self._all = incarnation, tail, all_ranks
        self._offsets: dict[int, int] = {}
        self._labels: dict[int, _Label] = {}

    def print_new(self, write: Callable[[str], None]) -> bool:
        """Print what the logs have gained; return whether they may still grow.

        A failure to read another rank than the first is ignored.
        """
        growing = self._print_rank(0, write)
        for rank in [*self._readers][1:]:
            try:
                growing |= self._print_rank(rank, write)
            except (Refused, InputError) as error:
                # Its file may appear yet, or its node answer again, as long as the start goes on.
                if not growing:
                    warn(f"rank {rank}: {error}")
                    del self._readers[rank]
        return growing

    def _print_rank(self, rank: int, write: Callable[[str], None]) -> bool:
        reader, growing, offset = self._readers[rank], True, self._offsets.get(rank)
        tail = reader.find_tail(self._incarnation, self._tail) if offset is None else _Tail(offset)
        for text, part in reader.from_tail(self._incarnation, tail):
            if self._all and part.ranks > len(self._labels) and part.ranks > 1:
                self._labels = {each: _Label(each) for each in range(part.ranks)}
                self._readers |= {each: reader.of_rank(each) for each in range(1, part.ranks)}
            label = self._labels.get(rank)
            write(text if label is None else label.feed(text))
            self._offsets[rank], growing = part.next, part.live
        return growing

    def finish(self, write: Callable[[str], None]) -> None:
        """Print last lines that have no newline."""
        for label in self._labels.values():
            write(label.finish())


def _may_appear(found: JobDetail, error: Refused | InputError, incarnation: int) -> bool:
    """Whether to retry a failed read: the start has not begun or was skipped, or its node is unreachable."""
    if isinstance(error, Refused) and error.status >= 500:
        return found.job.ended is None
    begun = found.incarnation == incarnation and (found.job.ended is not None or found.job.state.lower() == "running")
    return not begun and (found.job.ended is None or incarnation < found.incarnation)
