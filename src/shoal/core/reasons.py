"""Reasons of verdicts: a template of a sentence, and the numbers that fill it in.

This module has the templates that any policy or placer may use. A policy declares further ones in its own module and
lists them in its class attribute ``reasons``.
"""

import re
import string
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np

from shoal.core.units import Seconds

Number: TypeAlias = float | str

FIRST_OWN_CODE = 64
"""The lowest code for templates of policies that are not part of Shoal."""


class Words(Protocol):
    """The format of a reason's numbers: simulated times in seconds, those of a live cluster as clock times."""

    def at(self, seconds: Seconds) -> str:
        """Return a time, for a field with the format ``time``."""

    def span(self, seconds: Seconds) -> str:
        """Return a duration, for a field with the format ``span``."""

    def number(self, value: float, spec: str) -> str:
        """Return any other number as text."""


class SimulatedWords:
    """Times and durations in seconds, as simulations count them."""

    def at(self, seconds: Seconds) -> str:
        """Return "t = 664.8 s"."""
        return f"t = {seconds:,.6g} s"

    def span(self, seconds: Seconds) -> str:
        """Return "664.8 s"."""
        return f"{seconds:,.6g} s"

    def number(self, value: float, spec: str) -> str:
        """Return the number in this format."""
        return format(value, spec)


_SIMULATED = SimulatedWords()
_SIMULATED_TIME = re.compile(r"t = (-?[\d,.]+(?:e[+-]?\d+)?|inf) s")
_FIELD = re.compile(r"{([^}:]+)[^}]*}")
_ONE = re.compile(r"(?<![\d,.])1 GPUs\b")


@dataclass(frozen=True, slots=True, eq=False)
class ReasonTemplate:
    """A sentence with fields named after their numbers: ``"waits: needs {GPUs it needs:,.0f} GPUs"``.

    A time in seconds has the format ``time``, as in ``"leased until {end of the lease:time}"``, a duration ``span``.

    ``code`` identifies the template in columns of verdicts and in their digests, so a template keeps its code from
    version to version. Codes below `FIRST_OWN_CODE` are Shoal's own; a user's policy takes codes from there to 255. The
    sentence of a refusal begins with "waits" or "cannot". A template is equal to itself only, so looking it up in a
    dictionary calls no Python function.
    """

    code: int
    """Stored as numpy's ``uint8``, so that ``np.where(mask, A.code, B.code)`` is a column of codes."""
    name: str
    text: str
    numbers: tuple[str, ...] = field(init=False)
    """The names of the numbers, in the order of the text, which is also their order in a `Reason`."""

    def __post_init__(self) -> None:
        if not 0 <= self.code <= 255:
            raise ValueError(f"reason {self.name}: its code must be from 0 to 255, not {self.code}")
        names = [name for _, name, _, _ in string.Formatter().parse(self.text) if name is not None]
        if any(not name or name.isdecimal() for name in names):
            raise ValueError(f"reason {self.name}: each field of its text must say what the number is: {self.text!r}")
        object.__setattr__(self, "code", np.uint8(self.code))
        object.__setattr__(self, "numbers", tuple(dict.fromkeys(names)))

    @property
    def outline(self) -> str:
        """The text with the name of each number, in brackets, instead of the number."""
        return _FIELD.sub(r"[\1]", self.text)

    @property
    def refuses(self) -> bool:
        """Whether the sentence is that of a refusal."""
        return self.text.startswith(("waits", "cannot"))


@dataclass(frozen=True, slots=True)
class Reason:
    """A template and the numbers of one job; the sentence is formatted on demand."""

    template: ReasonTemplate
    numbers: tuple[Number, ...] = ()

    def sentence(self, words: Words = _SIMULATED) -> str:
        """The template's text with the numbers in it, as ``words`` writes them."""
        values = (_Field(value, words) if not isinstance(value, str) else value for value in self.numbers)
        named = dict(zip(self.template.numbers, values, strict=True))
        text = _ONE.sub("1 GPU", self.template.text.format_map(named))
        if words is _SIMULATED:
            return text
        # Times that a policy has written into a text of its own.
        return _SIMULATED_TIME.sub(lambda found: words.at(float(found[1].replace(",", ""))), text)


@dataclass(frozen=True, slots=True)
class _Field:
    """A number of a reason, formatted by the ``words``."""

    value: float
    words: Words

    def __format__(self, spec: str) -> str:
        if spec == "time":
            return self.words.at(self.value)
        return self.words.span(self.value) if spec == "span" else self.words.number(self.value, spec)


_T = ReasonTemplate

IN_TURN = _T(
    0,
    "IN_TURN",
    "runs: its {what jobs are ordered by} is {its value:,.6g}, and jobs with up to"
    " {value of the last job served:,.6g} go first",
)
FITS = _T(1, "FITS", "runs: it fits, {GPUs in use:,.0f} of {GPUs of the cluster:,.0f} GPUs are in use")
LEASED = _T(3, "LEASED", "keeps its GPUs: its lease runs until {end of the lease:time}")
KEPT_SEATS = _T(
    8,
    "KEPT_SEATS",
    "keeps its {GPUs held:,.0f} GPUs: it was granted {GPUs granted:,.0f}, but they are not free where it could use"
    " them ({free GPUs:,.0f} free, at most {most free GPUs on one node:,.0f} on one node)",
)
OUTRANKED = _T(
    20,
    "OUTRANKED",
    "waits: its {what jobs are ordered by} is {its value:,.6g}; jobs with up to {value of the last job served:,.6g} go"
    " first and take the GPUs",
)
NO_ROOM = _T(22, "NO_ROOM", "waits: needs {GPUs it needs:,.0f} GPUs; {GPUs left:,.0f} left when its turn comes")
TOO_LARGE = _T(
    23,
    "TOO_LARGE",
    "cannot run: needs {GPUs it needs:,.0f} GPUs of one kind; the most this cluster has is "
    "{most GPUs of a usable kind:,.0f}",
)
NO_KIND = _T(24, "NO_KIND", "cannot run: none of the cluster's GPU types ({the cluster's kinds}) is one it can use")
FRAGMENTED = _T(
    25,
    "FRAGMENTED",
    "waits: fragmented, {free GPUs:,.0f} GPUs free, largest block {most free GPUs on one node:,.0f}; needs "
    "{GPUs granted:,.0f}",
)
STOPPING = _T(28, "STOPPING", "waits: its last run is still being stopped")
PARTNER_UNSEATED = _T(29, "PARTNER_UNSEATED", "waits: the job it was to share GPUs with ({the other job}) has no seat")
SET_ASIDE = _T(
    39,
    "SET_ASIDE",
    "waits: set aside, since the policy cannot decide with it ({the policy's fault}); it is tried again at"
    " {time of the next try:time}, or under another policy",
)
IN_WORDS = _T(40, "IN_WORDS", "{the whole sentence}")
TENANT_CAP = _T(
    41,
    "TENANT_CAP",
    "waits: tenant {its tenant} runs {GPUs its tenant is granted:,.0f} of its at most {most GPUs of its tenant:,.0f}"
    " GPUs",
)
WIDER_THAN_CAP = _T(
    46,
    "WIDER_THAN_CAP",
    "cannot run: needs {GPUs it needs:,.0f} GPUs; its tenant {its tenant} has at most {most GPUs of its tenant:,.0f} at"
    " once",
)
RETURNED = _T(
    42, "RETURNED", "waits: the GPUs it would run on were lent and are returned to tenant {tenant they return to}"
)
GUARANTEED = _T(
    43, "GUARANTEED", "runs: its tenant {its tenant} has {GPUs guaranteed to its tenant:,.0f} GPUs guaranteed"
)
SHRUNK_TO_CAP = _T(
    44,
    "SHRUNK_TO_CAP",
    "runs on {GPUs granted:,.0f} GPUs: tenant {its tenant} has at most {most GPUs of its tenant:,.0f}",
)
FILLS = _T(45, "FILLS", "runs: it fits in {GPUs left over:,.0f} GPUs left over when lent GPUs were returned")
KEPT_UNSAVED = _T(
    56,
    "KEPT_UNSAVED",
    "keeps its {GPUs held:,.0f} GPUs: a stop would lose its last {seconds of run not saved:span} of run",
)
HELD_UNSAVED = _T(
    57,
    "HELD_UNSAVED",
    "waits: needs {GPUs it needs:,.0f} GPUs; running jobs ({jobs that may not be stopped:,.0f}) keep"
    " {GPUs they hold:,.0f} GPUs: stopping them would lose {seconds of run not saved:span} of run",
)
KEPT_FREE = _T(
    58,
    "KEPT_FREE",
    "waits: the free GPUs are kept for {the job they are kept for}; this job has not shown that it saves its work, so"
    " it could not be stopped for that one",
)
KEPT_BY_OWNER = _T(
    55, "KEPT_BY_OWNER", "keeps its {GPUs held:,.0f} GPUs: its owner declared that it must not be stopped"
)
NOT_FREE_YET = _T(
    61,
    "NOT_FREE_YET",
    "waits: needs {GPUs granted:,.0f} GPUs, {free GPUs:,.0f} free; runs of cancelled jobs still hold "
    "{GPUs of cancelled jobs:,.0f}",
)
LOWER_PRIORITY = _T(
    62,
    "LOWER_PRIORITY",
    "waits: its priority is {its priority:,.0f}; {job before it} of the same tenant, with {priority of that job:,.0f},"
    " starts first",
)
SUSPENDED_THERE = _T(
    63,
    "SUSPENDED_THERE",
    "waits: it is suspended on {its node} and can be resumed only there; it needs {GPUs it needs:,.0f} GPUs there and"
    " {free GPUs there:,.0f} are free",
)
AVOIDS = _T(60, "AVOIDS", "waits: no GPUs are free except on {the nodes}, which could not start it")

_GRANTS = (IN_TURN, FITS, LEASED, KEPT_SEATS)
_OF_QUOTAS = (TENANT_CAP, RETURNED, GUARANTEED, SHRUNK_TO_CAP, FILLS, WIDER_THAN_CAP)
_REFUSALS = (OUTRANKED, NO_ROOM, TOO_LARGE, NO_KIND, FRAGMENTED, STOPPING, PARTNER_UNSEATED, SET_ASIDE)
_OF_UNSAVED_WORK = (KEPT_BY_OWNER, KEPT_UNSAVED, HELD_UNSAVED, KEPT_FREE)
GENERIC = (
    *_GRANTS, *_REFUSALS, IN_WORDS, *_OF_QUOTAS, *_OF_UNSAVED_WORK, AVOIDS, NOT_FREE_YET, LOWER_PRIORITY,
    SUSPENDED_THERE
)  # fmt: skip
"""The templates of this module, in order of their codes."""


def in_words(text: str) -> Reason:
    """Return a reason that is a whole sentence, without a declared template."""
    return Reason(IN_WORDS, (text,))
