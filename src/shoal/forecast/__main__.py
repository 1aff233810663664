"""Answer one question about a journal: JSON on standard input, JSON on standard output.

A control plane runs ``python -m shoal.forecast`` as a subprocess so that it can continue to decide meanwhile. The
question is ``{"journal", "now"}`` with ``"forecast": true``, with ``"question"`` and ``"tenant"``, or with
``"decision"``, ``"tenant"`` and ``"limit"``; the answer is ``{"answer"}`` or ``{"error": [field, value, hint]}``.
"""

import json
import resource
import sys
from pathlib import Path

import msgspec

from shoal.core.errors import InputError, ShoalError
from shoal.forecast.past_decision import past_decision
from shoal.forecast.what_if import forecast, what_if
from shoal.wire.messages import WhatIf

_MOST_BYTES = 8 * 2**30
"""Memory of this process: a question that needs more is refused before the machine runs short."""


def main() -> None:
    """Read the question, write the answer."""
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_BYTES, _MOST_BYTES))
    asked = json.load(sys.stdin)
    path, now = Path(asked["journal"]), float(asked["now"])
    try:
        if asked.get("forecast"):
            answer = msgspec.to_builtins(forecast(path, now))
        elif "decision" in asked:
            found = past_decision(path, asked["decision"], tenant=asked["tenant"], limit=asked["limit"])
            answer = msgspec.to_builtins(found)
        else:
            answer = what_if(path, now, msgspec.convert(asked["question"], WhatIf), tenant=asked["tenant"])
    except InputError as error:
        json.dump({"error": [error.field, error.value, error.hint]}, sys.stdout, default=str)
    except ShoalError as error:
        json.dump({"error": ["journal", path.name, str(error)]}, sys.stdout)
    except MemoryError:
        json.dump({"error": ["question", "…", "needs too much memory: ask less"]}, sys.stdout)
    else:
        sys.stdout.write(msgspec.json.encode({"answer": answer}).decode())


if __name__ == "__main__":
    main()
