"""The page of the cluster: static files of this package, for browsers, under a strict content security policy."""

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from shoal.report.bundle import bundle

_MEDIA = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_SCRIPT = "page.js"
"""All modules as one file: a request for each would be most of the time until the first view."""

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Nothing but this server's own files runs or is loaded, and no string becomes HTML."""

_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
    "Vary": "Accept, Accept-Encoding",
}


@dataclass(frozen=True, slots=True)
class WebFile:
    """A file of the page, plain and compressed."""

    media: str
    plain: bytes
    packed: bytes
    tag: str


@cache
def web_files() -> Mapping[str, WebFile]:
    """Return the files of the page by name, its modules as one script."""
    entries = resources.files("shoal.serve").joinpath("web").iterdir()
    contents = {entry.name: entry.read_bytes() for entry in entries if not entry.name.endswith(".js")}
    contents[_SCRIPT] = bundle("main.js").encode()
    return {name: _web_file(name, plain) for name, plain in contents.items()}


def _web_file(name: str, plain: bytes) -> WebFile:
    media, tag = _MEDIA[name.rpartition(".")[2]], hashlib.sha256(plain).hexdigest()[:16]
    return WebFile(f"{media}; charset=utf-8", plain, gzip.compress(plain, 9, mtime=0), f'"{tag}"')


@dataclass(frozen=True, slots=True)
class WebPage:
    """Answers browsers with the files of the page; other callers of ``/`` get the answer of ``otherwise``."""

    otherwise: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope)
        name = request.path_params.get("file", "index.html")
        found = web_files().get(name)
        wants_page = "file" in request.path_params or "text/html" in request.headers.get("accept", "")
        if found is None or not wants_page or request.method not in ("GET", "HEAD"):
            await self.otherwise(scope, receive, send)
            return
        await _answer(request, found)(scope, receive, send)


def _answer(request: Request, file: WebFile) -> Response:
    headers = {**_HEADERS, "ETag": file.tag}
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    packed = "gzip" in request.headers.get("accept-encoding", "")
    content = file.packed if packed else file.plain
    headers |= {"Content-Encoding": "gzip"} if packed else {}
    if request.method == "HEAD":
        return Response(headers={**headers, "Content-Length": str(len(content))}, media_type=file.media)
    return Response(content, headers=headers, media_type=file.media)
