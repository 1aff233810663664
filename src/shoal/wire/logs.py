"""Structured logs: one JSON object per line with time, level, logger, event and fields."""

import json
import logging
import time

_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLine(logging.Formatter):
    """Formats a record as one JSON object; keys of ``extra`` become fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "at": f"{when}.{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        fields = {name: value for name, value in vars(record).items() if name not in _USUAL}
        return json.dumps({**line, **fields}, default=str)


def log_json(handler: logging.Handler | None = None) -> None:
    """Log JSON lines from this process, to standard error unless another handler is given.

    A line that cannot be written, as on a full disk, is dropped.
    """
    logging.raiseExceptions = False
    handler = handler or logging.StreamHandler()
    handler.setFormatter(JsonLine())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
