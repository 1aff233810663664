"""Key-value store of an elastic job, in a process of its own that outlives every worker.

``python -m shoal.trainer.elastic.store [PORT]`` listens on the port (0 or none: any free one), prints the port on a
line, and serves until SIGTERM, SIGINT or the end of its standard input.
"""

import signal
import sys
import threading

from torch.distributed import TCPStore

from shoal.core.errors import InputError


def main(arguments: list[str]) -> int:
    """Serve; returns the exit code: 0, or 2 after printing one line of error."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    try:
        store = open_store(arguments[0] if arguments else "0")
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


def open_store(port: str) -> TCPStore:
    """A store listening on a loopback port; 0 picks a free one."""
    if not port.isdecimal() or int(port) > 65535:
        raise InputError("port", port, "must be a whole number from 0 to 65535")
    try:
        return TCPStore("127.0.0.1", int(port), is_master=True, wait_for_workers=False)
    except RuntimeError as error:
        raise InputError("port", port, f"cannot listen there ({str(error).splitlines()[0]}); choose another") from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
