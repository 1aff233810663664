"""Refusals: a status and a ``ProblemDetails`` with the field, the value and the way out.

Internal errors are logged here and answered without their text.
"""

from collections.abc import Mapping
from typing import Any

from shoal.core.errors import InputError
from shoal.wire.messages import ProblemDetails

_MOST_CHARACTERS = 500


class RequestError(Exception):
    """A refused request and its response."""

    def __init__(
        self,
        status: int,
        error: str,
        field: str | None = None,
        value: Any = None,
        hint: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status = status
        self.problem = ProblemDetails(error, field, value, hint)
        self.headers = dict(headers or {})
        super().__init__(error)


def bad_input(error: InputError, status: int = 422) -> RequestError:
    """Return the refusal of bad input; its text is cut to 500 characters."""
    return RequestError(status, _short(str(error)), error.field, _plain(error.value), error.hint)


def unknown_job(job: str) -> RequestError:
    """Return 404 for a job that does not exist or that the caller may not see: both are answered alike."""
    return bad_input(InputError("job", job, "there is no such job; `shoal queue --all` lists yours"), 404)


def unknown_app(app: str) -> RequestError:
    """Return 404 for an app without live jobs that the caller may see."""
    return bad_input(InputError("app", app, "there is no such app: no live job of yours names it"), 404)


def _plain(value: object) -> Any:
    """Return a value in a form that can be sent back: short, and JSON."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float) and abs(value) < 2**53:
        return value
    return _short(value if isinstance(value, str) else repr(value))


def _short(text: str) -> str:
    # A lone half of a surrogate pair is valid in a Python string and in no encoding.
    clean = text[:_MOST_CHARACTERS].encode(errors="replace").decode()
    return clean if len(text) <= _MOST_CHARACTERS else clean + "…"
