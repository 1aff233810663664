"""Which lines of the mutated functions a test runs, and which lines of its function a mutant changes.

A line is counted from that of its function's ``def``. mutmut writes every mutant of a function, and its unchanged copy,
into one file, and an index with the lines of each beside it.
"""

import json
import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_UNCHANGED = "__mutmut_orig"


class MutatedFiles:
    """The files with mutants below a folder ``src``."""

    def __init__(self, source: Path) -> None:
        self._source = source
        self._spans: dict[str, dict[str, list[int]]] = {}
        """By file: the first line of each function in it, from 0, and the line after its last."""
        self._starts: dict[str, list[tuple[int, int, str]]] = {}
        """By file: first line, end and name of each unchanged copy, in order."""
        self._texts: dict[str, list[str]] = {}
        for index in source.rglob("*.spans"):
            file = str(index.with_suffix("").resolve())
            spans = self._spans[file] = json.loads(index.read_text())["spans"]
            self._starts[file] = sorted((*span, name) for name, span in spans.items() if name.endswith(_UNCHANGED))

    def __contains__(self, file: str) -> bool:
        return file in self._spans

    def functions(self, lines: set[tuple[str, int]]) -> dict[str, list[int]]:
        """Return by function the lines of its unchanged copy that are among these, by file."""
        found: dict[str, list[int]] = defaultdict(list)
        for file, number in sorted(lines):
            starts = self._starts[file]
            at = bisect_right(starts, (number - 1, sys.maxsize, "")) - 1
            if at >= 0 and number <= starts[at][1]:
                first, _, name = starts[at]
                found[f"{self._module(file)}.{name.removesuffix(_UNCHANGED)}"].append(number - 1 - first)
        return found

    def changed(self, mutant: str) -> range:
        """Return the lines of its function that a mutant changes."""
        module, _, name = mutant.rpartition(".")
        unchanged = name.rpartition("__mutmut_")[0] + _UNCHANGED
        file = str((self._source / Path(*module.split("."))).resolve()) + ".py"
        if file not in self._texts:
            self._texts[file] = Path(file).read_text().splitlines()
        before, after = (self._texts[file][slice(*self._spans[file][each])] for each in (unchanged, name))
        after = [line.replace(name, unchanged, 1) for line in after]
        first = next((i for i, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), 0)
        pairs = zip(before[:first:-1], after[:first:-1], strict=False)
        same = next((i for i, (one, other) in enumerate(pairs) if one != other), None)
        end = len(before) - (min(len(before), len(after)) - first - 1 if same is None else same)
        return range(first, max(end, first + 1))

    def _module(self, file: str) -> str:
        return ".".join(Path(file).relative_to(self._source.resolve()).with_suffix("").parts)


@contextmanager
def lines_run(files: MutatedFiles) -> Iterator[Callable[[], set[tuple[str, int]]]]:
    """Note the lines of these files that run; the value returns those since the last call, as (file, line)."""
    seen: set[tuple[str, int]] = set()

    def take() -> set[tuple[str, int]]:
        nonlocal seen
        found, seen = seen, set()
        if sys.version_info >= (3, 12):
            sys.monitoring.restart_events()
        return found

    if sys.version_info >= (3, 12):
        tool, line_event = sys.monitoring.COVERAGE_ID, sys.monitoring.events.LINE

        def on_line(code: CodeType, number: int) -> Any:
            if code.co_filename in files:
                seen.add((code.co_filename, number))
            return sys.monitoring.DISABLE

        sys.monitoring.use_tool_id(tool, "mutants")
        sys.monitoring.register_callback(tool, line_event, on_line)
        sys.monitoring.set_events(tool, line_event)
        try:
            yield take
        finally:
            sys.monitoring.set_events(tool, 0)
            sys.monitoring.free_tool_id(tool)
    else:
        import threading

        def on_event(frame: FrameType, event: str, _: object) -> Any:
            if frame.f_code.co_filename not in files:
                return None
            if event == "line":
                seen.add((frame.f_code.co_filename, frame.f_lineno))
            return on_event

        threading.settrace(on_event)
        sys.settrace(on_event)
        try:
            yield take
        finally:
            sys.settrace(None)
            threading.settrace(None)
