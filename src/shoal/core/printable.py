"""Text from users, jobs and agents made safe for terminals and pages.

A terminal obeys control characters, and terminals and pages reorder text after bidirectional marks: names, causes of
failures and log lines could clear a screen, write to a clipboard or look like other text. Such characters are shown as
escapes (``\\x1b``, ``\\u202e``) instead.
"""

import re
import unicodedata

_JOINERS = "\u200c\u200d"
"""Used within words of several scripts, and within emoji."""

_COLOUR = r"\x1b\[[0-9;:]*m"
_PIECES = re.compile(rf"{_COLOUR}|\r\n|[^\x20-\x7e]")
_UNFINISHED = re.compile(r"(?:\x1b(?:\[[0-9;:]{0,64})?|\r)\Z")
_RESET = "\x1b[0m"


def printable(text: str, keep: str = "") -> str:
    """Return the text with an escape for every character that cannot be printed, except characters in ``keep``.

    Control and format characters, bidirectional marks, line separators and lone surrogates cannot be printed.
    """
    if text.isprintable():
        return text
    return "".join(char if _is_safe(char) or char in keep else _escape(char) for char in text)


def printable_json(document: str) -> str:
    """Return a JSON document with every character that cannot be printed as an escape within its string.

    Line breaks and tabs between values stay; within strings JSON has escaped them already.
    """
    if document.isprintable():
        return document
    return "".join(char if _is_safe(char) or char in "\n\t" else _json_escape(char) for char in document)


class LogPrinter:
    """Makes a job's output safe for a terminal, piece by piece: line breaks, tabs and colours stay.

    A carriage return without a line feed becomes a line break, so that a line cannot cover the one before it.
    """

    def __init__(self) -> None:
        self._held = ""
        self._coloured = False

    def feed(self, text: str) -> str:
        """Return the output so far that can be printed; an unfinished sequence is held back."""
        text = self._held + text
        unfinished = _UNFINISHED.search(text)
        self._held = unfinished[0] if unfinished else ""
        return _PIECES.sub(self._piece, text[: len(text) - len(self._held)])

    def finish(self) -> str:
        """Return the output held back, and a reset of the colour if one was set."""
        held, self._held = self._held, ""
        reset, self._coloured = _RESET if self._coloured else "", False
        return "".join("\n" if char == "\r" else printable(char) for char in held) + reset

    def _piece(self, found: re.Match[str]) -> str:
        piece = found[0]
        if piece[0] == "\x1b" and len(piece) > 1:
            self._coloured = True
            return piece
        return "\n" if piece in ("\r\n", "\r") else printable(piece, keep="\n\t")


def _is_safe(char: str) -> bool:
    return char.isprintable() or char in _JOINERS or unicodedata.category(char) == "Zs"


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escape(char: str) -> str:
    units = char.encode("utf-16-be", errors="surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
