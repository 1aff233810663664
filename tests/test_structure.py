"""Rules about the source tree that no linter checks: unique class names, sizes of files and functions, plain words."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "shoal"
FILES = sorted(SOURCE.rglob("*.py"))

LONGEST_FILE, LONGEST_FUNCTION = 450, 50

SAME_NAME_ALLOWED = {
    "ShoalCallback": "users of Hugging Face and of Lightning each import the callback of their own framework",
}
"""Class names that may be defined in more than one module, with the reason."""

HOUSEHOLD_WORDS = re.compile(
    r"\b(desk|doorway|bell|house|furniture|crew|memoir|who runs|who waits|is not spoken of|are not spoken of|so many"
    r"|is told|are told|was told|were told|reckoned|whoever|nobody)\b",
    re.IGNORECASE,
)
"""Words that a reader must translate before a sentence means something; see docs/glossary.md for the project's own."""


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def name(file: Path) -> str:
    return str(file.relative_to(SOURCE))


def docstrings(file: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring of a module, its classes, functions and attributes."""
    for node in ast.walk(tree(file)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for statement in node.body:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                value = statement.value.value
                if isinstance(value, str):
                    yield statement.lineno, value


def test_a_class_name_means_one_thing() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for file in FILES:
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(name(file))
    shared = {one: files for one, files in homes.items() if len(files) > 1 and one not in SAME_NAME_ALLOWED}
    assert not shared
    assert all(len(homes[one]) > 1 for one in SAME_NAME_ALLOWED), "an exception that is no longer needed"


@pytest.mark.parametrize("file", FILES, ids=name)
def test_files_and_functions_are_short(file: Path) -> None:
    assert len(file.read_text(encoding="utf-8").splitlines()) <= LONGEST_FILE
    long = [
        f"{node.name}: {lines} lines"
        for node in ast.walk(tree(file))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or 0) - node.lineno + 1) > LONGEST_FUNCTION
    ]
    assert not long


@pytest.mark.parametrize("file", FILES, ids=name)
def test_docstrings_use_the_words_of_the_field(file: Path) -> None:
    found = [
        f"line {line}: {match[0]!r}" for line, text in docstrings(file) for match in HOUSEHOLD_WORDS.finditer(text)
    ]
    assert not found
