"""Identifiers of submitted jobs: a name and five characters that people can type."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from shoal.core.units import JobId

_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
"""Letters and digits of identifiers: no two look alike."""

_MOST_GIVEN = 100_000
"""Identifiers remembered from when they are given until their jobs are in the accounts."""


@dataclass(slots=True)
class JobIds:
    """Gives identifiers that no job has; the caller holds the control plane's lock."""

    _given: dict[JobId, None] = field(default_factory=dict)

    def new(self, name: str, taken: Callable[[JobId], bool]) -> JobId:
        """Return a new identifier; ``taken(id)`` is true if a job in the accounts has it."""
        while True:
            id = f"{name}-{''.join(secrets.choice(_ALPHABET) for _ in range(5))}"
            if id not in self._given and not taken(id):
                self._given[id] = None
                if len(self._given) > _MOST_GIVEN:  # the oldest was submitted or refused long ago
                    del self._given[next(iter(self._given))]
                return id
