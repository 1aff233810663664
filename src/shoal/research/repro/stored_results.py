"""Results by key in a file of JSON lines, which several processes may read and extend at once."""

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from shoal.core.errors import InputError

_BEGIN = b'{"key"'
"""How every line begins; an unfinished last line that begins so is of a process that was killed."""


@dataclass(slots=True)
class ResultCache:
    """Results by key, stored in ``file`` as one JSON line each; without a file, in memory only.

    A key is plain JSON and holds everything that a result depends on. Each line is appended under a lock on the file
    and reaches the operating system before ``put`` returns. A line that a killed process left unfinished is ignored,
    and the next line replaces it. ``reused_cpu`` is the CPU seconds of the stored results that were returned.
    """

    file: Path | None = None
    reused_cpu: float = 0.0
    _results: dict[str, Any] = field(default_factory=dict)
    _cpu: dict[str, float] = field(default_factory=dict)
    _position: int = 0
    _lines: int = 0

    def __post_init__(self) -> None:
        self._read()

    def get(self, key: Mapping[str, Any], make: Callable[[], Any]) -> Any:
        """Return the stored result of a key; if there is none, compute it with ``make`` and store it."""
        found = self.find(key)
        if found is None:
            before = cpu_seconds()
            found = make()
            self.put(key, found, cpu_seconds() - before)
        return found

    def find(self, key: Mapping[str, Any]) -> Any:
        """Return the stored result of a key, also one that another process has stored meanwhile, or None."""
        name = _encoded(key)
        if key in self:
            self.reused_cpu += self._cpu.get(name, 0.0)
        return self._results.get(name)

    def __contains__(self, key: Mapping[str, Any]) -> bool:
        name = _encoded(key)
        if name not in self._results:
            self._read()
        return self._results.get(name) is not None

    def put(self, key: Mapping[str, Any], result: Any, cpu: float | None = None) -> None:
        """Store a result and the CPU seconds it took, in place of an earlier one of the same key."""
        row = {"key": key, "value": result} | ({} if cpu is None else {"cpu": round(cpu, 3)})
        if self.file is not None:
            with self.file.open("a+b", buffering=0) as stored:
                fcntl.flock(stored, fcntl.LOCK_EX)
                _end_last_line(stored)
                stored.write(json.dumps(row).encode() + b"\n")
        self._keep(row)

    def items(self) -> Iterator[tuple[dict[str, Any], Any]]:
        """Yield all keys with their results."""
        self._read()
        return ((json.loads(key), result) for key, result in self._results.items())

    def _read(self) -> None:
        """Read the lines that were appended since the last time."""
        if self.file is None or not self.file.exists() or self.file.stat().st_size == self._position:
            return
        with self.file.open("rb") as stored:
            fcntl.flock(stored, fcntl.LOCK_SH)
            stored.seek(self._position)
            *lines, rest = stored.read().split(b"\n")
        for line in lines:
            self._lines += 1
            self._position += len(line) + 1
            self._take(line)
        if not (rest.startswith(_BEGIN) or _BEGIN.startswith(rest)):
            self._lines += 1
            self._take(rest)

    def _take(self, line: bytes) -> None:
        try:
            row = json.loads(line)
            _encoded(row["key"]), row["value"]
        except (ValueError, KeyError, TypeError) as error:
            hint = f"line {self._lines} is not a stored result; name another file or remove this one"
            raise InputError("out", str(self.file), hint) from error
        self._keep(row)

    def _keep(self, row: Mapping[str, Any]) -> None:
        name = _encoded(row["key"])
        self._results[name] = row["value"]
        self._cpu[name] = row.get("cpu", 0.0)


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its ended children, in seconds."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _end_last_line(stored: IO[bytes]) -> None:
    """Remove an unfinished last line that a killed process left, so that the next one begins on a line of its own."""
    size = end = stored.seek(0, os.SEEK_END)
    while end:
        begin = max(0, end - 65536)
        stored.seek(begin)
        piece = stored.read(end - begin)
        found = piece.rfind(b"\n")
        if found >= 0:
            end = begin + found + 1
            break
        end = begin
    if end < size:
        stored.truncate(end)


def _encoded(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)
