"""Key-value store of an elastic job, in a process of its own that outlives every worker.

``python -m shoal.trainer.elastic.store [PORT]`` listens on the port (0 or none: any free one) of the address in
``MASTER_ADDR`` (loopback by default) and on no other, prints the port on a line, and serves until SIGTERM, SIGINT or
the end of its standard input.
"""

import os
import signal
import socket
import sys
import threading

from torch.distributed import TCPStore

from shoal.core.errors import InputError

_LOOPBACK = "127.0.0.1"


def main(arguments: list[str]) -> int:
    """Serve; returns the exit code: 0, or 2 after printing one line of error."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    try:
        store = open_store(arguments[0] if arguments else "0", os.environ.get("MASTER_ADDR") or _LOOPBACK)
    except InputError as error:
        print(f"shoal store: {error}", file=sys.stderr)
        return 2
    print(store.port, flush=True)

    def watch() -> None:
        while sys.stdin.readline():
            pass
        ended.set()

    threading.Thread(target=watch, daemon=True).start()
    ended.wait()
    return 0


def open_store(port: str, host: str = _LOOPBACK) -> TCPStore:
    """A store listening on a port of one address; 0 picks a free port."""
    if not port.isdecimal() or int(port) > 65535:
        raise InputError("port", port, "must be a whole number from 0 to 65535")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as bound:
            # Bound here: torch would listen on every address of the machine.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            bound.listen()
            number = bound.getsockname()[1]
            return TCPStore(host, number, is_master=True, wait_for_workers=False, master_listen_fd=bound.detach())
    except (OSError, RuntimeError) as error:
        hint = f"cannot listen on {host} there ({str(error).splitlines()[0]}); choose another"
        raise InputError("port", port, hint) from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
