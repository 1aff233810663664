"""Handlers with which a browser logs in and out."""

from shoal.core.errors import InputError
from shoal.serve.errors import RequestError
from shoal.serve.logins import CODE_SECONDS
from shoal.serve.route import AppContext, Call
from shoal.serve.tokens import Holder
from shoal.wire.login_messages import LoginCode, LoginRow, NewLogin


async def log_in(context: AppContext, call: Call) -> LoginRow:
    """Log a browser in with a token or a code: the answer sets a cookie that stands for the token."""
    body: NewLogin = call.body
    if (body.token is None) == (body.code is None):
        raise InputError("token", None, "give a token or a code, not both")
    if body.code is not None:
        holder, hint = context.logins.redeem(body.code), "it was used or is too old; `shoal web` prints another"
    else:
        holder, hint = context.tokens.holder((body.token or "").strip()), "an admin creates one: `shoal token create`"
    if holder is None or holder.expired:
        what = "code" if body.token is None else "token"
        raise RequestError(401, f"no valid {what}", hint=hint, headers={"WWW-Authenticate": "Bearer"})
    if holder.role not in ("admin", "user"):
        raise RequestError(403, f"a token with the role {holder.role} cannot log in", hint="it takes admin or user")
    secret, expires = context.logins.begin(holder)
    call.headers["Set-Cookie"] = call.cookie.set(secret, expires - context.tokens.now())
    return _row(holder, expires)


async def login(context: AppContext, call: Call) -> LoginRow:
    """Return the token that the caller acts with."""
    found = context.logins.holder(call.cookie.secret) if call.cookie.secret else None
    return _row(call.holder, call.holder.expires if found is None else found[1])


async def log_out(context: AppContext, call: Call) -> None:
    """Log the browser out and remove its cookie."""
    context.logins.end(call.cookie.secret)
    call.headers["Set-Cookie"] = call.cookie.set("", 0.0)


async def login_code(context: AppContext, call: Call) -> LoginCode:
    """Return a code with which one browser can log in as the caller, once."""
    return LoginCode(context.logins.new_code(call.holder), CODE_SECONDS)


def _row(holder: Holder, expires: float) -> LoginRow:
    return LoginRow(holder.name, holder.role, holder.tenant, expires)
