"""Settings of a reproduction: the folder of public data, its extent, and stored results of earlier runs."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.core.errors import InputError


@dataclass(slots=True)
class Kept:
    """Results stored in a file, one JSON line each, so that no run is repeated; in memory without a file.

    A key holds everything a run depends on, as plain JSON.
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
        """The stored result of this key; computed by ``make`` and stored if there is none."""
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
    """``folder`` holds the public traces; ``quick`` asks for a part of the experiment that takes about a minute.

    ``announce`` is called with a line of text before each run.
    """

    folder: Path | None
    quick: bool = False
    kept: Kept = field(default_factory=Kept)
    announce: Callable[[str], None] = lambda _: None

    @property
    def data(self) -> Path:
        """The folder of public traces; raises ``InputError`` if none was given."""
        if self.folder is None:
            raise InputError("data", None, "name the folder of public traces with --data DIR or $SHOAL_DATA")
        return self.folder
