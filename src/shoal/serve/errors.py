"""Saying no: every refusal is a status and a ``ProblemDetails`` with the field, the value and the way out.

Nothing of the inside goes out: an error nobody foresaw is logged here and answered without its text.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from shoal.core.errors import InputError
from shoal.wire.messages import ProblemDetails

_MOST_CHARACTERS = 500
_AT = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>.*)`\Z", re.DOTALL)
_FIELD = re.compile(r"Object (?P<what>missing required|contains unknown) field `(?P<name>.*?)`", re.DOTALL)
_STEP = re.compile(r"\.?(?P<name>[^.\[\]]+)|\[(?P<index>\d+)\]")


class RequestError(Exception):
    """A request that is not served, and what its sender is told."""

    def __init__(self, status: int, problem: ProblemDetails, headers: Mapping[str, str] | None = None) -> None:
        self.status = status
        self.problem = problem
        self.headers = dict(headers or {})
        super().__init__(problem.error)


def bad_input(error: InputError, status: int = 422) -> RequestError:
    """The refusal that bad input is."""
    return RequestError(status, ProblemDetails(_short(str(error)), error.field, _plain(error.value), error.hint))


def unknown_job(job: str) -> RequestError:
    """No such job, or none that this caller may know of: the two are answered alike."""
    return bad_input(InputError("job", job, "there is no such job; `shoal queue --all` lists yours"), 404)


def unknown_app(app: str) -> RequestError:
    """No live job of such an app, or none that this caller may know of: the two are answered alike."""
    return bad_input(InputError("app", app, "there is no such app: no live job of yours names it"), 404)


def malformed(error: Exception, body: bytes) -> RequestError:
    """The refusal of a body that is not JSON (400) or not of the right form (422)."""
    if isinstance(error, RecursionError):
        return RequestError(400, ProblemDetails("the body is nested too deeply", "body", None, "send fewer levels"))
    if not isinstance(error, msgspec.ValidationError):
        return RequestError(
            400, ProblemDetails(_short(f"the body is not JSON: {error}"), "body", None, "send one JSON document")
        )
    name, hint = _place(str(error), "body")
    return bad_input(InputError(name, _value_at(body, name), hint))


def misasked(error: msgspec.ValidationError, query: Mapping[str, str]) -> RequestError:
    """The refusal of query parameters that are unknown or of the wrong form."""
    name, hint = _place(str(error), "query")
    return bad_input(InputError(name, query.get(name), hint))


def _place(message: str, whole: str) -> tuple[str, str]:
    """The field a message of msgspec's is about, and what it says of it."""
    at = _AT.search(message)
    path = at["path"] if at else ""
    said = message[: at.start()] if at else message
    named = _FIELD.match(said)
    if named is None:
        return path or whole, said
    what = "must be given" if named["what"] == "missing required" else "unknown; see /v1/openapi.json for what there is"
    return f"{path}.{named['name']}" if path else named["name"], what


def _value_at(body: bytes, path: str) -> Any:
    """What was written at a path, as far as it can be followed."""
    try:
        value = msgspec.json.decode(body)
        for step in _STEP.finditer(path):
            value = value[int(step["index"])] if step["index"] else value[step["name"]]
    except (ValueError, RecursionError, LookupError, TypeError):
        return None
    return value


def _plain(value: object) -> Any:
    """A value as it can be sent back: short, and JSON."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float) and abs(value) < 2**53:
        return value
    return _short(value if isinstance(value, str) else repr(value))


def _short(text: str) -> str:
    # A lone half of a surrogate pair is a character of Python's, but of no encoding.
    clean = text[:_MOST_CHARACTERS].encode(errors="replace").decode()
    return clean if len(text) <= _MOST_CHARACTERS else clean + "…"
