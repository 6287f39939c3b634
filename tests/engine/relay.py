"""Stands between Envoy and an engine and keeps what the engine was sent."""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import Self

from tests.support.processes import free_port


class Relay:
    """Passes bytes both ways; listens on `address`."""

    def __init__(self, engine_port: int) -> None:
        self._engine_port = engine_port
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._lock = threading.Lock()
        self._sent = bytearray()

    def sent(self) -> bytes:
        """All that went to the engine since the last call."""
        with self._lock:
            found, self._sent = bytes(self._sent), bytearray()
        return found

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return    # closed
            engine = socket.create_connection(("127.0.0.1", self._engine_port))
            threading.Thread(target=self._pass_on, args=(client, engine, True), daemon=True).start()
            threading.Thread(target=self._pass_on, args=(engine, client, False), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, keep: bool) -> None:
        try:
            while data := source.recv(65_536):
                if keep:
                    with self._lock:
                        self._sent += data
                target.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, target):
                end.close()
