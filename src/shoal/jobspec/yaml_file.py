"""YAML files read with the line of each field, so that an error can name it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.core.errors import InputError

if TYPE_CHECKING:
    from yaml.nodes import Node


def read_text(path: Path, field: str = "file") -> str:
    """Return a file's text; errors name it as the value of ``field``."""
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise InputError(field, str(path), f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(field, str(path), "is not text in UTF-8") from error


@contextmanager
def yaml_errors(path: Path, what: str, field: str = "file") -> Iterator[None]:
    """Turn errors of the YAML parser into ``InputError``: the file is not ``what``, with the line."""
    import yaml

    try:
        yield
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise InputError(field, str(path), f"is not {what}: {line}{error.problem}") from error
    except RecursionError:
        raise InputError(field, str(path), f"is not {what}: it is nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(field, str(path), f"is not {what}: {' '.join(str(error).split())}") from error


def lines_of(node: "Node") -> dict[str, int]:
    """The line of each field of a YAML mapping; a repeated field is an error."""
    from yaml import MappingNode
    from yaml.constructor import ConstructorError

    lines: dict[str, int] = {}
    for key, _ in node.value if isinstance(node, MappingNode) else ():
        if str(key.value) in lines:
            raise ConstructorError(None, None, f"{key.value} is given twice", key.start_mark)
        lines[str(key.value)] = key.start_mark.line + 1
    return lines


def place(where: str, field: str, lines: Mapping[str, int]) -> str:
    """The file, with the line of the field whose path this is, if it has one: ``jobs.yaml:3`` for ``env.N``."""
    name = field.partition(".")[0].partition("[")[0]
    return f"{where}:{lines[name]}" if name in lines else where
