"""A TCP connection that can be cut, or held up so that what was sent arrives late, and mended again."""

import socket
import struct
import threading
from contextlib import suppress


class Cable:
    """Leads from a port of its own to another one on this machine. Every method may be called from any thread."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._ends: set[socket.socket] = set()
        self._cut = False
        self._flows = threading.Event()
        self._flows.set()
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """What to call instead of the target."""
        return f"http://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Break every connection, and any that is tried until it is mended."""
        with self._lock:
            self._cut = True
            for end in self._ends:
                _break(end)

    def hold(self) -> None:
        """Let nothing through, in either direction, but lose none of it."""
        self._flows.clear()

    def mend(self) -> None:
        """Let everything through again; what was held up arrives now."""
        with self._lock:
            self._cut = False
        self._flows.set()

    def close(self) -> None:
        """End it for good."""
        with suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        self.cut()
        self._flows.set()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._door.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target), timeout=5.0)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            with self._lock:
                self._ends |= {near, far}
                if self._cut:
                    _break(near)
                    _break(far)
            for source, sink in ((near, far), (far, near)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(65536):
                self._flows.wait()
                sink.sendall(piece)
        self._flows.wait()
        with self._lock:
            for end in (source, sink):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            # The thread of the other direction has woken by now, or will; who comes second closes both.
            if source not in self._ends:
                source.close()
                sink.close()
            self._ends.discard(source)
            self._ends.discard(sink)


def _break(end: socket.socket) -> None:
    """Both ends are told at once, and what was under way is lost."""
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.shutdown(socket.SHUT_RDWR)
