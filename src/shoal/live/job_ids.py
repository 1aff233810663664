"""Identifiers of submitted jobs: a name and five characters that people can type."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from shoal.core.units import JobId

_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
"""Letters and digits of identifiers: no two look alike."""

_FIRST_LOOK, _MOST_GIVEN = 1000, 100_000
"""Identifiers after which those whose jobs are in the accounts are forgotten, and the most that are remembered."""


@dataclass(slots=True)
class JobIds:
    """Gives identifiers that no job has; the caller holds the control plane's lock."""

    _given: dict[JobId, None] = field(default_factory=dict)
    """Those whose jobs were not in the accounts at the last check: submitted since, or refused."""
    _look_at: int = _FIRST_LOOK

    def new(self, name: str, taken: Callable[[JobId], bool]) -> JobId:
        """Return a new identifier; ``taken(id)`` is true if a job in the accounts has it."""
        while True:
            id = f"{name}-{''.join(secrets.choice(_ALPHABET) for _ in range(5))}"
            if id not in self._given and not taken(id):
                if len(self._given) >= self._look_at:
                    self._forget(taken)
                self._given[id] = None
                return id

    def _forget(self, taken: Callable[[JobId], bool]) -> None:
        left = [id for id in self._given if not taken(id)]
        self._given = dict.fromkeys(left[-_MOST_GIVEN // 2 :])  # the oldest were refused long ago
        self._look_at = max(_FIRST_LOOK, 2 * len(self._given))
