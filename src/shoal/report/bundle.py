"""The modules of the cluster's page and of reports as one script, for a page in one file.

Browsers load no modules from a file beside an opened file, so each module becomes a function that returns what it
exports, and an import becomes a reference to that.
"""

import re
from importlib import resources

_IMPORT = re.compile(r'^import (?:\* as (?P<all>\w+)|\{(?P<names>[^}]*)\}) from "\./(?P<file>[\w.]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class) (\w+))", re.MULTILINE)
_COMMENT = re.compile(r"^[ \t]*(?://.*|/\*\*(?:[^*]|\*(?!/))*\*/)\n", re.MULTILINE)
_LEFT = re.compile(r"^\s*(?:import|export)\b.*", re.MULTILINE)


def bundle(entry: str, instead: dict[str, str] | None = None) -> str:
    """Return the script of a module and all it imports; ``instead`` names modules to take for others.

    Comments on lines of their own are left out.
    """
    done: dict[str, str] = {}
    _add(entry, instead or {}, done)
    return "\n".join(done.values())


def web_text(name: str) -> str:
    """Return a file of a report's page, or else of the cluster's page."""
    # Read as files: the package `serve` needs libraries that a report does not.
    root = resources.files("shoal")
    places = (root / "report" / "page" / name, root / "serve" / "web" / name)
    return next(place for place in places if place.is_file()).read_text(encoding="utf-8")


def _add(file: str, instead: dict[str, str], done: dict[str, str]) -> None:
    text = _COMMENT.sub("", web_text(file))
    for found in _IMPORT.finditer(text):
        needed = instead.get(found["file"], found["file"])
        if needed not in done:
            _add(needed, instead, done)

    def reference(found: re.Match[str]) -> str:
        module = _name(instead.get(found["file"], found["file"]))
        return f"const {found['all'] or '{' + found['names'].replace(' as ', ': ') + '}'} = {module};"

    names = _EXPORT.findall(text)
    body = _EXPORT.sub("", _IMPORT.sub(reference, text))
    unknown = _LEFT.search(body)
    if unknown is not None:
        raise ValueError(f"{file}: the bundle has no rule for: {unknown[0].strip()}")
    done[file] = f"const {_name(file)} = (() => {{\n{body}\nreturn {{ {', '.join(names)} }};\n}})();"


def _name(file: str) -> str:
    return "$" + file.removesuffix(".js").replace(".", "_")
