"""How long a job that crashed through its own fault is held back: the same rule in simulation and reality."""

from shoal.core.units import Seconds

MOST_CRASHES = 5
"""A job that crashes this often in a row without getting further is set aside as failed."""

FIRST_RETRY: Seconds = 10.0
LONGEST_RETRY: Seconds = 600.0


def retry_after(crashes: int, first: Seconds = FIRST_RETRY) -> Seconds:
    """How long to wait after so many crashes in a row: doubling from ``first``, and never longer than ten minutes."""
    return min(first * 2.0 ** (crashes - 1), max(first, LONGEST_RETRY))
