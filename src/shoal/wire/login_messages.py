"""Messages of browsers that log in, and of the event streams that pages listen to."""

from msgspec import Struct

from shoal.wire.fields import Role, Text


class NewLogin(Struct, forbid_unknown_fields=True, frozen=True):
    """The credential with which a browser logs in: the secret of a token, or a code that its holder asked for."""

    token: Text | None = None
    code: Text | None = None


class LoginRow(Struct, frozen=True):
    """The token that a caller acts with, and the Unix time at which the caller is logged out."""

    name: str
    role: Role
    tenant: str | None
    expires: float


class LoginCode(Struct, frozen=True):
    """A code with which one browser can log in, once, within this many seconds."""

    code: str
    seconds: float
