"""Names for the plain numbers and texts used throughout the ring."""

from typing import TypeAlias

Seconds: TypeAlias = float
"""Seconds since the start of the run (simulation) or since the epoch (a live cluster)."""

JobId: TypeAlias = str
"""A job's name, given by its owner; unique within a journal."""

JobNumber: TypeAlias = int
"""A job's admission number: 0 for the first one submitted. Events and commands refer to jobs by it."""

TenantId: TypeAlias = str
"""The account a job is charged to."""
