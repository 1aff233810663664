"""What every reproduction is given: where the public data lie, how thorough to be, and what was measured before."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.core.errors import InputError


@dataclass(slots=True)
class Kept:
    """Results kept in a file, one line of JSON each, so that what was measured once is not measured again.

    Without a file they are kept as long as this lives. A key is whatever a run depends on, as plain JSON.
    """

    file: Path | None = None
    _known: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.file is None or not self.file.exists():
            return
        for number, line in enumerate(self.file.read_text().splitlines(), start=1):
            try:
                row = json.loads(line)
                self._known[_key(row["key"])] = row["value"]
            except (ValueError, KeyError, TypeError) as error:
                hint = f"line {number} is not a kept result; name another file or remove this one"
                raise InputError("out", str(self.file), hint) from error

    def get(self, key: Mapping[str, Any], make: Callable[[], Any]) -> Any:
        """The kept result of this key; made now, and kept, where there is none."""
        found = self._known.get(_key(key))
        if found is None:
            found = self._known[_key(key)] = make()
            if self.file is not None:
                with self.file.open("a") as kept:
                    kept.write(json.dumps({"key": key, "value": found}) + "\n")
        return found


def _key(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Setting:
    """``data`` is the folder of public traces; ``quick`` asks for a piece of the experiment that takes a minute or so.

    ``tell`` hears of every run before it is made.
    """

    data: Path
    quick: bool = False
    kept: Kept = field(default_factory=Kept)
    tell: Callable[[str], None] = lambda _: None
