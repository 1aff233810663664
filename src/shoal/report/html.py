"""A self-contained page from a frame, a style and a script of ``page/``. It loads nothing from anywhere."""

import json
from collections.abc import Mapping
from html import escape as escape_html
from importlib import resources

from shoal.core.printable import printable, printable_json


def fill_frame(title: str, parts: str, data: object, script: str, style: str = "") -> str:
    """A self-contained page: the frame with its style, these parts, and the data that a script of ``page/`` draws.

    ``style`` names a file of ``page/`` with rules of this page alone.
    """
    pieces = {
        "title": escape(title),
        "style": _resource("advice.css") + (_resource(style) if style else ""),
        "parts": parts,
        # A "</script>" in a job's name must not end the element early.
        "data": printable_json(json.dumps(data, separators=(",", ":"), ensure_ascii=False)).replace("<", "\\u003c"),
        "plot": _resource("plot.js"),
        "charts": _resource(script),
    }
    return filled(_resource("frame.html"), pieces)


def filled(frame: str, pieces: Mapping[str, str]) -> str:
    """Return a frame with each ``{{name}}`` replaced by the piece of that name; braces in a piece stay."""
    head, *rest = frame.split("{{")
    for piece in rest:
        name, _, tail = piece.partition("}}")
        head += pieces[name] + tail
    return head


def escape(text: str) -> str:
    """Return text as HTML, without control characters and bidirectional marks."""
    return escape_html(printable(text))


def _resource(name: str) -> str:
    return resources.files("shoal.report").joinpath("page", name).read_text(encoding="utf-8")
