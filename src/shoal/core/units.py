"""Names for the plain numbers that travel through the ring."""

from typing import TypeAlias

Seconds: TypeAlias = float
"""Seconds since the start of the run (simulation) or since the epoch (a live cluster)."""

JobId: TypeAlias = str
"""The name a person gave a job; unique within a journal."""

JobNumber: TypeAlias = int
"""A job's admission number: 0 for the first one submitted. Inside the ring jobs are numbers; names live at the edge."""

TenantId: TypeAlias = str
"""The account a job is charged to."""
