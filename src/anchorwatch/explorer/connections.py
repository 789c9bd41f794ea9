"""Connections of the explorer's server, with a time limit and a limit to their number.

uvicorn closes a connection that is idle between two requests, and no other: one whose request was
begun and never ended stays open, and so does one that never reads its answer.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE_SECONDS = 10.0
"""How long a client may take over a request, and over reading any part of an answer."""
MOST_CONNECTIONS = 128
"""Open connections; the one that has kept us waiting longest gives way to another."""


class Connection(H11Protocol):
    """An HTTP/1.1 connection that is closed when its client keeps us waiting too long."""

    patience = PATIENCE_SECONDS
    most = MOST_CONNECTIONS
    _alarm: asyncio.TimerHandle | None = None
    _waiting_since = 0.0
    _unread = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > self.most:
            ours = (
                other
                for other in self.connections
                if isinstance(other, Connection) and other._alarm
            )
            min(ours, key=lambda other: other._waiting_since)._close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._client_is_due():
            self._stop_waiting()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._client_is_due():
            self._wait()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self._client_is_due():
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _client_is_due(self) -> bool:
        """Whether the client has something to send or to read before we go on."""
        sends = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        answered = self.cycle is None or self.cycle.response_complete
        return sends or answered or self.flow.write_paused

    def _wait(self) -> None:
        """Begin to wait for the client; bytes that come one by one do not begin it anew."""
        self._stop_waiting()
        self._waiting_since = self.loop.time()
        self._unread = self.transport.get_write_buffer_size()
        self._alarm = self.loop.call_later(self.patience, self._overdue)

    def _stop_waiting(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _overdue(self) -> None:
        """Close at once, unless some of a long answer was read meanwhile."""
        if 0 < self.transport.get_write_buffer_size() < self._unread:
            self._wait()
        else:
            self._close()

    def _close(self) -> None:
        """Close without sending what nobody reads."""
        self._stop_waiting()
        self.transport.abort()
