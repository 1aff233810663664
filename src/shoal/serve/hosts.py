"""Names by which callers may address a server.

A web page can make its own name resolve to this server (DNS rebinding), but its browser still sends the page's name.
"""

import ipaddress
import re
import socket
from collections.abc import Collection, Iterable

_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.%\w]+\]|[^:\[\]\s/@]+)(?::[0-9]{1,5})?\Z")


def own_hosts(bound: str, more: Iterable[str] = ()) -> frozenset[str]:
    """Return the names of a server: the machine's, its bound address's, and ``more`` that its operator gives."""
    names = ["localhost", socket.gethostname(), bound, *more]
    if bound not in ("127.0.0.1", "::1", "localhost"):
        names.append(socket.getfqdn())  # asks the resolver, which may take a while
    return frozenset(name.lower().rstrip(".") for name in names if name)


def is_own_host(given: str, hosts: Collection[str]) -> bool:
    """Whether a ``Host`` header names this server: by one of its names or by an IP address.

    Any IP address is accepted, since no page can make one lead elsewhere.
    """
    match = _HOST.match(given)
    if match is None:
        return False
    name = match["name"].lower().rstrip(".")
    if name in hosts:
        return True
    try:
        ipaddress.ip_address(name.strip("[]").partition("%")[0])
    except ValueError:
        return False
    return True
