"""Every numbered table and figure of the papers: the reproduction that makes it, or why there is none."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from shoal.research.repro.cause_rows import CAUSES
from shoal.research.repro.inventory_rows import PAPERS
from shoal.research.repro.recorded import RecordedRun
from shoal.research.repro.registry import Reproduction, reproductions
from shoal.research.repro.table import REPRODUCES, is_different

MADE, SMALLER, NOT_MADE, NO_EXPERIMENT = "made", "made smaller", "not made", "not an experiment"
NOT_RECORDED, NO_CLAIM = "no verdict recorded", "no claim to check"


@dataclass(frozen=True, slots=True)
class InventoryRow:
    """A table or figure of a paper, or a result in its text.

    ``names`` are the reproductions that make it; ``smaller`` says what is smaller than in the paper; ``why`` gives the
    reason if nothing makes it, and its requirements.
    """

    paper: str
    number: str
    shows: str
    names: tuple[str, ...] = ()
    smaller: str = ""
    why: str = ""

    @property
    def state(self) -> str:
        """The state in words: made, made smaller, not made, or no experiment."""
        if self.names:
            return SMALLER if self.smaller else MADE
        return NO_EXPERIMENT if self.why.startswith(NO_EXPERIMENT) else NOT_MADE

    @property
    def reason(self) -> str:
        """The respect in which it is smaller, or the reason why it is not made."""
        return self.smaller if self.names else self.why.removeprefix(NO_EXPERIMENT).lstrip(": ")


def inventory(known: Mapping[str, Reproduction] | None = None) -> tuple[InventoryRow, ...]:
    """Return all rows, paper by paper; names that end in ``*`` are replaced by the reproductions that match."""
    known = reproductions() if known is None else known
    return tuple(
        InventoryRow(paper, number, shows, tuple(_matching(names.split(), known)), smaller, why)
        for paper, rows in PAPERS.items()
        for number, shows, names, smaller, why in rows
    )


def _matching(names: Iterable[str], known: Mapping[str, Reproduction]) -> Iterator[str]:
    for name in names:
        if "*" in name:
            yield from (one for one in known if fnmatchcase(one, name))
        else:
            yield name


def faults(known: Mapping[str, Reproduction] | None = None) -> list[str]:
    """Return a line for each row that lacks its reproduction or a reason, and each reproduction that lacks a row."""
    known = reproductions() if known is None else known
    rows = inventory(known)
    named = {name for row in rows for name in row.names}
    papers = {row.paper for row in rows}
    found = []
    for row in rows:
        found += [f"{row.paper}, {row.number}: no reproduction is named {n}" for n in row.names if n not in known]
        if not (row.names or row.why):
            found.append(f"{row.paper}, {row.number}: neither a reproduction nor a reason")
    found += [f"{n} has no row" for n, one in known.items() if one.paper in papers and n not in named]
    return found


def verdict(row: InventoryRow, recorded: Mapping[str, RecordedRun]) -> str:
    """Return the verdicts of the recorded runs that make a row; a dash if it is not made."""
    if not row.names:
        return "–"
    found = [text for name in row.names if name in recorded for text in recorded[name].verdicts]
    missing = _missing(row, recorded)
    return "; ".join([*dict.fromkeys(found), *missing]) or NO_CLAIM


def brief_verdict(row: InventoryRow, recorded: Mapping[str, RecordedRun]) -> str:
    """Return a row's verdicts in brief: of each kind the first, its first differing claim, and the number of others."""
    if not row.names:
        return "–"
    found = dict.fromkeys(text for name in row.names if name in recorded for text in recorded[name].verdicts)
    kinds: dict[str, list[str]] = {}
    for text in found:
        kinds.setdefault(text.partition(":")[0], []).append(_brief(text))
    briefs = [first + _others(len(others)) for first, *others in kinds.values()]
    return "; ".join([*briefs, *_missing(row, recorded)]) or NO_CLAIM


def brief_causes(row: InventoryRow, recorded: Mapping[str, RecordedRun]) -> str:
    """Return in few words why the recorded runs that make a row differ from the paper, each cause once."""
    differing = (name for name in row.names if name in recorded and any(map(is_different, recorded[name].verdicts)))
    return "; ".join(dict.fromkeys(brief for name in differing for _, brief, _ in CAUSES.get(name, ()) if brief))


def _missing(row: InventoryRow, recorded: Mapping[str, RecordedRun]) -> list[str]:
    """What to say of reproductions without a record; their names if others of the row have one."""
    missing = [name for name in row.names if name not in recorded]
    if not missing:
        return []
    return [NOT_RECORDED if len(missing) == len(row.names) else f"{NOT_RECORDED} of {', '.join(missing)}"]


def _others(count: int) -> str:
    return f"; so in {count} more table{'s' if count > 1 else ''}" if count else ""


def _brief(text: str) -> str:
    first, *others = text.split("; ")
    if not (text.startswith("differs") and others):
        return text
    count = others.pop() if others[-1].endswith(" agree") else ""
    return f"{first}{f' (and {len(others)} more)' if others else ''}{count and f'; {count}'}"


def tally(rows: Sequence[InventoryRow], recorded: Mapping[str, RecordedRun]) -> str:
    """Return how many of a paper's tables and figures are made, and how many of these reproduce, in one sentence."""
    experiments = [row for row in rows if row.state != NO_EXPERIMENT]
    made = [row for row in experiments if row.names]
    verdicts = [verdict(row, recorded) for row in made]
    whole = sum(text == REPRODUCES for text in verdicts)
    part = sum("differs" in text for text in verdicts)
    unknown = sum("cannot be told" in text and "differs" not in text for text in verdicts)
    without = verdicts.count(NO_CLAIM)
    rest = len(made) - whole - part - unknown - without
    counts = (
        (whole, "reproduce"),
        (part, "differ"),
        (unknown, "cannot be told"),
        (without, "without a claim"),
        (rest, "without a verdict yet"),
    )
    text = ", ".join(f"{count} {what}" for count, what in counts if count)
    return f"{len(made)} of {len(experiments)} experiments made{': ' if text else ''}{text}"
