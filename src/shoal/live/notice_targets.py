"""Where notices of the ends of jobs may be sent: the web addresses and mail domains that the operator allows."""

import re
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from shoal.core.errors import InputError

_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:\d{1,5})?")
_ADDRESS = re.compile(r"[A-Za-z0-9._%+-]{1,64}@([A-Za-z0-9.-]{1,253})")
_PORTS = {"http": 80, "https": 443}
_MAIL = "mail:"


@dataclass(frozen=True, slots=True)
class NoticeTargets:
    """Allowed targets: ``HOST`` on the usual ports, ``HOST:PORT``, or ``@DOMAIN`` for mail by the server ``smtp``.

    The control plane may reach hosts that its users cannot, so only those that the operator names are allowed.
    """

    allowed: tuple[str, ...] = ()
    smtp: str = ""

    def __post_init__(self) -> None:
        for entry in self.allowed:
            if not _HOST.fullmatch(entry.removeprefix("@").lower()):
                raise InputError("notify-allow", entry, "give a host, HOST:PORT, or @DOMAIN for mail")
        if self.smtp and not _HOST.fullmatch(self.smtp.lower()):
            raise InputError("smtp", self.smtp, "give HOST or HOST:PORT")

    def check(self, targets: list[str]) -> tuple[str, ...]:
        """Return the targets of a job; ``InputError`` names one that is not allowed."""
        for target in targets:
            self._check_mail(target) if target.startswith(_MAIL) else self._check_url(target)
        return tuple(targets)

    def _check_mail(self, target: str) -> None:
        found = _ADDRESS.fullmatch(target.removeprefix(_MAIL))
        if found is None:
            raise InputError("notify", target, "must be mail:NAME@DOMAIN")
        if not self.smtp:
            raise InputError("notify", target, "this cluster sends no mail (`--smtp` of its control plane)")
        self._check_allowed(target, f"@{found[1].lower()}")

    def _check_url(self, target: str) -> None:
        try:
            parts = urlsplit(target)
            plain = parts.scheme in _PORTS and parts.hostname and parts.username is parts.password is None
            port = parts.port
        except ValueError:
            plain, port = False, None
        if not plain or not target.isascii() or not target.isprintable() or " " in target:
            raise InputError("notify", target, "must be an http or https address without a user, or mail:ADDRESS")
        usual = port in (None, _PORTS[parts.scheme])
        self._check_allowed(target, f"{parts.hostname}" if usual else f"{parts.hostname}:{port}")

    def _check_allowed(self, target: str, place: str) -> None:
        if place not in {entry.lower() for entry in self.allowed}:
            known = ", ".join(self.allowed) or "none"
            hint = f"{place} is not among the allowed ones, {known} (`--notify-allow` of the control plane)"
            raise InputError("notify", target, hint)


def mail_address(target: str) -> str | None:
    """Return the address of a mail target; None if it is a web address."""
    return target.removeprefix(_MAIL) if target.startswith(_MAIL) else None


def web_address(target: str) -> tuple[SplitResult, str]:
    """Return the parts of a web address, and its path with the query."""
    parts = urlsplit(target)
    return parts, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
