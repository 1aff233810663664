"""Sentences for one tenant, without the names of other tenants' jobs."""

import re
from collections.abc import Callable

from shoal.core.units import JobId, TenantId

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]*")


def without_foreign_names(sentence: str, tenant: TenantId | None, owner: Callable[[JobId], TenantId | None]) -> str:
    """Return a sentence in which the jobs of other tenants are "another job"; None is an admin, who sees all names.

    ``owner`` returns the tenant of a job; None if the word is not a job's name.
    """
    if tenant is None:
        return sentence
    return _WORD.sub(lambda word: word[0] if owner(word[0]) in (None, tenant) else "another job", sentence)
