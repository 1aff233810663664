"""Reasons of verdicts: a template of a sentence, and the numbers that fill it in.

This module has the templates that any policy or placer may use. A policy declares further ones in its own module and
lists them in its class attribute ``reasons``.
"""

import re
import string
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

Number: TypeAlias = float | str

FIRST_OWN_CODE = 64
"""The lowest code for templates of policies that are not part of Shoal."""

_ONE = re.compile(r"(?<![\d,.])1 GPUs\b")


@dataclass(frozen=True, slots=True)
class ReasonTemplate:
    """A sentence with numbered fields, e.g. ``"waits: needs {0:,.0f} GPUs; {1:,.0f} are free"``.

    ``code`` identifies the template in columns of verdicts and in their digests, so a template keeps its code from
    version to version. Codes below `FIRST_OWN_CODE` are Shoal's own; a user's policy takes codes from there to 255.
    ``numbers`` says what each field is. The sentence of a refusal begins with "waits" or "cannot".
    """

    code: int
    """Stored as numpy's ``uint8``, so that ``np.where(mask, A.code, B.code)`` is a column of codes."""
    name: str
    text: str = field(compare=False)
    numbers: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.code <= 255:
            raise ValueError(f"reason {self.name}: its code must be from 0 to 255, not {self.code}")
        fields = {name for _, name, _, _ in string.Formatter().parse(self.text) if name is not None}
        if fields != {str(i) for i in range(len(self.numbers))}:
            raise ValueError(f"reason {self.name}: its text has the fields {sorted(fields)}, not one for each number")
        object.__setattr__(self, "code", np.uint8(self.code))

    @property
    def refuses(self) -> bool:
        """Whether the sentence is that of a refusal."""
        return self.text.startswith(("waits", "cannot"))


@dataclass(frozen=True, slots=True)
class Reason:
    """A template and the numbers of one job; the sentence is formatted on demand."""

    template: ReasonTemplate
    numbers: tuple[Number, ...] = ()

    def sentence(self) -> str:
        """The template's text with the numbers in it."""
        return _ONE.sub("1 GPU", self.template.text.format(*self.numbers))


_T = ReasonTemplate

IN_TURN = _T(
    0,
    "IN_TURN",
    "runs: its {0} is {1:,.6g}, within the {2:,.6g} up to which jobs are served",
    ("what jobs are ordered by", "the job's value", "the value of the last job served"),
)
FITS = _T(1, "FITS", "runs: it fits, {0:,.0f} of {1:,.0f} GPUs are in use", ("GPUs in use", "GPUs of the cluster"))
LEASED = _T(3, "LEASED", "keeps its GPUs: its lease runs until t = {0:,.6g} s", ("end of the lease in seconds",))
KEPT_SEATS = _T(
    8,
    "KEPT_SEATS",
    "keeps its {0:,.0f} GPUs: {1:,.0f} could not be seated ({2:,.0f} free, largest block {3:,.0f})",
    ("GPUs held", "GPUs granted", "free GPUs", "most free GPUs on one node"),
)
OUTRANKED = _T(
    20,
    "OUTRANKED",
    "waits: its {0} is {1:,.6g}; jobs up to {2:,.6g} take the GPUs",
    ("what jobs are ordered by", "the job's value", "the value of the last job served"),
)
NO_ROOM = _T(
    22,
    "NO_ROOM",
    "waits: needs {0:,.0f} GPUs; {1:,.0f} left when its turn comes",
    ("GPUs it needs", "GPUs left"),
)
TOO_LARGE = _T(
    23,
    "TOO_LARGE",
    "cannot run: needs {0:,.0f} GPUs of one kind; the most this cluster has is {1:,.0f}",
    ("GPUs it needs", "most GPUs of a kind it can use"),
)
NO_KIND = _T(
    24,
    "NO_KIND",
    "cannot run: none of the cluster's GPU types ({0}) is one it can use",
    ("the cluster's kinds",),
)
FRAGMENTED = _T(
    25,
    "FRAGMENTED",
    "waits: fragmented, {1:,.0f} GPUs free, largest block {2:,.0f}; needs {0:,.0f}",
    ("GPUs granted", "free GPUs", "most free GPUs on one node"),
)
STOPPING = _T(28, "STOPPING", "waits: its last run is still being stopped")
PARTNER_UNSEATED = _T(
    29,
    "PARTNER_UNSEATED",
    "waits: the job it was to share GPUs with ({0}) has no seat",
    ("the other job",),
)
IN_WORDS = _T(40, "IN_WORDS", "{0}", ("the whole sentence",))

GENERIC = (
    IN_TURN,
    FITS,
    LEASED,
    KEPT_SEATS,
    OUTRANKED,
    NO_ROOM,
    TOO_LARGE,
    NO_KIND,
    FRAGMENTED,
    STOPPING,
    PARTNER_UNSEATED,
    IN_WORDS,
)
"""The templates of this module, in order of their codes."""


def in_words(text: str) -> Reason:
    """A reason given as a whole sentence, for which no template is declared."""
    return Reason(IN_WORDS, (text,))
