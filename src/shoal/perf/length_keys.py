"""Keys of ended runs: properties shared with a job whose length is to be predicted, from specific to general."""

import posixpath
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

Key: TypeAlias = tuple[str, ...]
"""Properties that runs share: the name of a level, then values."""

ALL: Key = ("all",)

_DIGITS = re.compile(r"\d+")
_WORDS = {
    "name, gang": "of {1} by {0} on {3}",
    "name": "of {1} by {0}",
    "script": "of {1} by {0}",
    "model, gang": "of {0} on {1}",
    "model": "of {0}",
    "user, gang": "by {0} on {1}",
    "user": "by {0}",
    "gang": "on {0}",
    "all": "of all jobs",
}
_OF_WORK = frozenset({"name, gang", "name", "script", "model, gang", "model"})
_LATEST = {"user": 1024, "gang": 1024, "model": 1024, "all": 4096}


@lru_cache(8192)
def keys_of(user: str, name: str, script: str, model: str, gpus: int, kinds: tuple[str, ...]) -> tuple[Key, ...]:
    """Return the keys of a job, the most specific first. Digits in a name do not count: they number arrays."""
    name, gang = _DIGITS.sub("#", name), f"{gpus} GPU{'s' * (gpus != 1)}"
    found: list[Key] = []
    if name:
        found += [("name, gang", user, name, model, gang), ("name", user, name, model)]
    if script:
        found.append(("script", user, script, model))
    if model:
        found += [("model, gang", model, gang), ("model", model)]
    of_kind = " or ".join(kinds)
    return (*found, ("user, gang", user, gang, of_kind), ("user", user), ("gang", gang, of_kind), ALL)


def in_work(key: Key) -> bool:
    """Return whether the runs of a key are counted in work, which a job without a model counts in seconds."""
    return key[0] in _OF_WORK


def latest(key: Key) -> int:
    """Return how many runs of a key are kept: few of a specific key, so that it follows its user's present habits."""
    return _LATEST.get(key[0], 64)


def in_words(key: Key) -> str:
    """Return whose runs those of a key are, as words that follow "earlier runs"."""
    return _WORDS[key[0]].format(*key[1:])


def script_of(command: Sequence[str]) -> str:
    """Return the script that a command runs: its first word that names one, a module after ``-m``, or its program."""
    words = list(command)
    for at, word in enumerate(words):
        if word.endswith((".py", ".sh")):
            return posixpath.basename(word)
        if word == "-m" and at + 1 < len(words) and "python" in posixpath.basename(words[0]):
            return words[at + 1]
    return posixpath.basename(words[0]) if words else ""
