"""A local copy of the objects of a path: listed once, then kept up to date by a watch that is resumed."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from shoal.provider.kubernetes.api import Api, ApiRefusal, ChangeStream, Metadata, Status

T = TypeVar("T")

_GONE = 410
"""Status of a watch from a version that the API server has forgotten."""


class _Marked(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()


@dataclass(slots=True)
class ListWatch(Generic[T]):
    """The objects of type ``item`` below ``path`` that ``params`` selects.

    One thread reads the watch. Every other request is made by ``items``, which raises its errors: called again later,
    it resumes the watch, and lists again only if the watch's version is too old.
    """

    api: Api
    path: str
    item: type[T]
    params: Mapping[str, object] = field(default_factory=dict)
    lists: int = 0
    """How many times the objects were listed."""
    _objects: dict[str, T] = field(default_factory=dict)
    _version: str = ""
    _stream: ChangeStream | None = None
    _reader: threading.Thread | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def items(self) -> list[T]:
        """Return the objects; ``EngineAway`` or ``ApiRefusal`` if a watch that broke off cannot be resumed."""
        if self._reader is None or not self._reader.is_alive():
            self._resume()
        with self._lock:
            return [*self._objects.values()]

    def close(self) -> None:
        """End the watch and its thread."""
        if self._stream is not None:
            self._stream.close()
        if self._reader is not None:
            self._reader.join(5.0)

    def _resume(self) -> None:
        stream = None
        if self._version:
            try:
                stream = self.api.watch(self.path, self.params, self._version)
            except ApiRefusal as error:
                if error.status != _GONE:
                    raise
        if stream is None:
            found, self._version = self.api.list(self.path, self.item, self.params)
            self.lists += 1
            with self._lock:
                self._objects = {_uid(one): one for one in found}
            stream = self.api.watch(self.path, self.params, self._version)
        self._stream = stream
        self._reader = threading.Thread(target=self._read, args=(stream,), name=f"watch {self.path}", daemon=True)
        self._reader.start()

    def _read(self, stream: ChangeStream) -> None:
        try:
            self._follow(stream)
        except msgspec.MsgspecError:  # not an object that can be read: list again, which says so
            self._version = ""

    def _follow(self, stream: ChangeStream) -> None:
        for event in stream:
            if event.type == "ERROR":
                if msgspec.json.decode(event.object, type=Status).code == _GONE:
                    self._version = ""
                return
            marked = msgspec.json.decode(event.object, type=_Marked).metadata
            with self._lock:
                self._version = marked.resource_version
                if event.type == "DELETED":
                    self._objects.pop(marked.uid, None)
                elif event.type != "BOOKMARK":
                    self._objects[marked.uid] = msgspec.json.decode(event.object, type=self.item)


def _uid(one: Any) -> str:
    uid: str = one.metadata.uid
    return uid
