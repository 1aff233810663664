"""Forecasts and what-if answers: the live state simulated onward, in a process of its own so decisions never wait."""

import json
import logging
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from shoal.core.errors import InputError, ShoalError
from shoal.core.units import TenantId
from shoal.live.control_plane import ControlPlane
from shoal.wire.decision_messages import DecisionDetail
from shoal.wire.messages import StartForecast, WhatIf

log = logging.getLogger("shoal.serve.forecaster")

_ASKED_SECONDS = 30.0
"""Seconds since the queue was last listed after which start times are no longer forecast."""

_FORECAST_SECONDS = 5.0
_FORECAST_FRACTION = 0.1
"""Seconds between forecasts: at least 5, and at least ten times as long as the last one took."""

_QUESTION_SECONDS = 120.0
_MOST_DECISIONS = 32


class UnknownDecision(LookupError):
    """No decision has this number yet."""


@dataclass(slots=True)
class Forecaster:
    """Forecasts start times (after ``start``) and answers what-if questions, from the control plane's journal."""

    control_plane: ControlPlane
    journal: Path
    _stopped: threading.Event = field(default_factory=threading.Event)
    _decisions: dict[tuple[int, TenantId | None, int], DecisionDetail] = field(default_factory=dict)
    """The last answers of ``decision``, which do not change."""

    def start(self) -> None:
        """Begin to forecast start times in a thread."""
        threading.Thread(target=self._forecast_repeatedly, name="forecasts", daemon=True).start()

    def stop(self) -> None:
        """Stop forecasting."""
        self._stopped.set()

    def answer(self, question: WhatIf, tenant: TenantId | None) -> Any:
        """Simulate the live jobs onward; of other tenants' jobs the answer holds only sums."""
        return self._ask({"question": msgspec.to_builtins(question), "tenant": tenant})

    def decision(self, number: int, tenant: TenantId | None, limit: int) -> DecisionDetail:
        """Return a past decision, made again; of other tenants' jobs only sums."""
        if number >= self.control_plane.cluster().decisions:
            raise UnknownDecision(number)
        key = number, tenant, limit
        found = self._decisions.get(key)
        if found is None:
            asked = {"decision": number, "tenant": tenant, "limit": limit}
            found = self._decisions[key] = msgspec.convert(self._ask(asked), DecisionDetail)
            for old in list(self._decisions)[:-_MOST_DECISIONS]:
                self._decisions.pop(old, None)
        return found

    def _forecast_repeatedly(self) -> None:
        pause, seen = _FORECAST_SECONDS, (-1, -1.0)
        while not self._stopped.wait(pause):
            pause = 0.5
            if time.monotonic() - self.control_plane.jobs_read_at >= _ASKED_SECONDS:
                continue
            state = (self.control_plane.cluster().decisions, round(self.control_plane.jobs_read_at))
            if state == seen or not self.control_plane.waiting:
                continue
            seen, began = state, time.monotonic()
            try:
                found = self._ask({"forecast": True})
                self.control_plane.forecast_at = began
                self.control_plane.forecasts = msgspec.convert(found, dict[str, StartForecast])
            except (ShoalError, msgspec.ValidationError, OSError) as error:
                log.warning("no forecast", extra={"error": str(error)})
            pause = max(_FORECAST_SECONDS, (time.monotonic() - began) / _FORECAST_FRACTION)

    def _ask(self, question: dict[str, Any]) -> Any:
        now = self.control_plane.cluster().now - self.control_plane.about.epoch
        try:
            done = subprocess.run(
                # -P: modules are not looked for in the present folder, which others may write to.
                [sys.executable, "-P", "-m", "shoal.forecast"],
                input=json.dumps({**question, "journal": str(self.journal), "now": now}),
                capture_output=True,
                text=True,
                timeout=_QUESTION_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise InputError("question", "…", f"took longer than {_QUESTION_SECONDS:.0f} s: ask less") from error
        if done.returncode or not done.stdout:
            log.error("a simulation failed", extra={"status": done.returncode, "stderr": done.stderr[-2000:]})
            raise InputError("question", "…", "could not be simulated; the control plane's log has the reason")
        answer = json.loads(done.stdout)
        if "error" in answer:
            raise InputError(*answer["error"])
        return answer["answer"]
