"""Tokens of allocations: each opens the orders of one allocation's agent, and no other.

A token is the allocation's name and its HMAC under a key of the control plane's home. It is stored nowhere, survives a
restart of the control plane, and opens nothing once no run wants the allocation.
"""

import hashlib
import hmac

_PREFIX = "shoal_run."
_LABEL = b"allocation "


def allocation_token(key: bytes, allocation: str) -> str:
    """Return the secret of an allocation."""
    return f"{_PREFIX}{allocation}.{_sign(key, allocation)}"


def allocation_of(key: bytes, secret: str) -> str | None:
    """Return the allocation whose secret this is; None if it is no allocation's."""
    name, dot, signature = secret.removeprefix(_PREFIX).rpartition(".")
    if not secret.startswith(_PREFIX) or not dot or not signature.isascii():
        return None
    return name if hmac.compare_digest(signature, _sign(key, name)) else None


def _sign(key: bytes, allocation: str) -> str:
    return hmac.new(key, _LABEL + allocation.encode(errors="replace"), hashlib.sha256).hexdigest()
