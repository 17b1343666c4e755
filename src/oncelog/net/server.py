"""Accept connections, and answer the requests of each connection in order.

Requests of a connection are handled one at a time, except while processed ones wait for their outcome (`Deferred`).

`net.frames` cuts the bytes of a connection into frames. This module passes them to a handler and writes the responses.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, cast

from oncelog.net.admission import INSIDE, Arrival
from oncelog.net.eager import start_eagerly
from oncelog.net.entrance import Entrance, most_idle
from oncelog.net.frames import BadFrameError, FrameReader, ReadBuffers
from oncelog.net.paced import STEP_BYTES, PacedWriter
from oncelog.net.pieces import add_framed, in_few_pieces, needs_join
from oncelog.net.ports import Ports
from oncelog.net.repeated_lines import RepeatedLines, place_of
from oncelog.net.replies import Chunks, Deferred, Replies, Reply
from oncelog.net.server_options import Limits, Listener, plain_host
from oncelog.net.session import BUSY, CLOSED, IN_ORDER, OUTSIDE, THROTTLED, TURN_TAKEN, UNREAD, Deadline, Session
from oncelog.net.unsent import DEFAULT_LIMIT, Unsent

__all__ = [
    "BadFrameError",
    "Chunks",
    "Deferred",
    "Handler",
    "Limits",
    "Listener",
    "Server",
    "Session",
]

Handler = Callable[[memoryview, "Session"], Chunks | Deferred | None]

WRITE_BYTES = 64 * 1024
"""Responses to pipelined requests are gathered up to this size before they are written."""
JOIN_BYTES = 16 * 1024
"""Responses of up to this size are joined into one chunk before they are written."""
FRAMES_A_TURN = 64
"""Frames of one connection that are answered before other connections get a turn."""
SWEEPS = 8
"""Number of sweeps in the time after which a connection without any activity is idle."""

_log = logging.getLogger("oncelog.net")


class _LostTransport(asyncio.Transport):
    """The transport of a lost connection. There is nothing left to close."""

    def abort(self) -> None:
        """Do nothing."""


_LOST = _LostTransport()


class ServerConnection(asyncio.BufferedProtocol):
    """Serve one client."""

    __slots__ = (
        "_frames",
        "_paced",
        "_reading",
        "_replies",
        "_server",
        "_throttled",
        "_transport",
        "arrival",
        "session",
    )

    def __init__(self, server: Server, listener: Listener, arrival: Arrival | None = None) -> None:
        """`arrival` is the connection's own if it was admitted before."""
        self._server = server
        self.arrival = arrival
        self._transport: asyncio.Transport
        self.session = Session(listener=listener, request_limit=server.limits.max_request_size)
        self._frames = FrameReader(server.buffers)
        self._replies = Replies()
        self._paced: PacedWriter | None = None
        """Writes large responses over TLS."""
        self._reading = True
        self._throttled: asyncio.TimerHandle | None = None
        """The end of the present pause, if there is one."""

    # -- called by the event loop ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register a new connection, and serve it when it is admitted."""
        self._transport = cast(asyncio.Transport, transport)
        session = self.session
        name = transport.get_extra_info("peername") or ("", 0)
        session.host, session.port = plain_host(name), int(name[1])
        session.connection_id = self._server.register(self)
        if not session.connection_id:
            session.mute(CLOSED)
            self._transport.abort()
            return
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if session.encrypted:
            self._paced = PacedWriter(self._server.loop, self._transport, self._all_written)
        session.drop = self._drop_later
        session.throttle = self._throttle_for
        if self.arrival is not None:
            self._identify(session.listener)
            return
        self.arrival = arrival = Arrival(session.listener.name, session.host, self._decided)
        self._server.entrance.arrive(arrival)
        if arrival.state != INSIDE:  # a refused connection may be closed later
            session.mute(OUTSIDE)

    def _decided(self, arrival: Arrival) -> None:
        """Serve the connection, or close it: it is admitted or refused, perhaps after a wait."""
        session = self.session
        if arrival.state != INSIDE:
            self.abort()
            return
        self._identify(session.listener)
        if session.muted & OUTSIDE:
            session.unmute(OUTSIDE)
            session.active = True
            self._next_turn()

    def _identify(self, listener: Listener) -> None:
        """Set the principal of a client with a certificate, and begin its login."""
        session = self.session
        if listener.principal_of is not None:
            certificate = self._transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
            try:
                session.principal = listener.principal_of(certificate) if certificate else session.principal
            except ValueError as error:
                text = f"closing {session}: {error}"
                self._server.lines.log("closed connections", session.host, text, level=logging.WARNING)
                self.abort()
                return
        if listener.begin_login is not None:
            session.login = listener.begin_login(session)

    def _drop_later(self, delay_s: float, reason: str) -> asyncio.TimerHandle:
        return self._server.loop.call_later(delay_s, self._drop, reason)

    def _drop(self, reason: str) -> None:
        if not self.session.muted & CLOSED:
            self._server.lines.log("ended connections", self.session.host, f"closing {self.session}: {reason}")
            self._disconnect()

    def _throttle_for(self, delay_s: float) -> None:
        """Handle no request for at least this time. The responses to earlier ones are sent."""
        if self.session.muted & CLOSED:
            return
        end = self._server.loop.time() + delay_s
        if self._throttled is not None:
            if self._throttled.when() >= end:
                return
            self._throttled.cancel()
        self.session.mute(THROTTLED)
        self._throttled = self._server.loop.call_at(end, self._end_throttling)

    def _end_throttling(self) -> None:
        self._throttled = None
        self.session.unmute(THROTTLED)
        self.session.active = True
        self._next_turn()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the memory of the connection. A response in progress is dropped."""
        self.session.mute(CLOSED)
        if self._paced is not None:
            self._paced.discard()
        if self._throttled is not None:
            self._throttled.cancel()
            self._throttled = None
        self._replies.cancel()
        self._server.unsent.all_read(self)
        self._server.unsent.drop_draft(self.session)
        self.session.disconnected()
        self._frames.discard()
        self._server.gone(self)
        self._break_cycles()

    def _break_cycles(self) -> None:
        """Free the memory of a lost connection now, not at the next garbage collection: with TLS, it is 300 KB."""
        self.session.lost()
        self.arrival = self._paced = None
        self._transport = _LOST

    def eof_received(self) -> bool:
        """Record that the client sends no more. Return True to keep the connection open while a response is due."""
        self.session.disconnected()
        if self.session.encrypted:
            return False  # the event loop closes it in any case
        pause = 0 if self._frames.empty else THROTTLED  # it may be long, so it counts only if requests wait for it
        return bool(self._replies.queue) or self.session.muted & (TURN_TAKEN | UNREAD | pause) != 0

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory for the next read."""
        return self._frames.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Serve the bytes of a read."""
        if self.session.muted & CLOSED:
            return
        if self._frames.received(nbytes):
            self._turn()
        else:
            self.session.active = True  # a long frame makes progress

    def pause_writing(self) -> None:
        """Serve no more requests, because the client reads its responses too slowly."""
        self.session.mute(UNREAD)
        if self._paced is not None:
            self._paced.pause()

    def resume_writing(self) -> None:
        """Serve requests again, because the client has read its responses."""
        if self._paced is None or self._paced.resume():
            self._all_written()

    def _all_written(self) -> None:
        self.session.unmute(UNREAD)
        self._server.unsent.all_read(self)
        self.session.active = True
        self._next_turn()

    # -- called by the server -----------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Close the connection, now or after the requests in progress are answered."""
        if not self._replies.queue:
            self._disconnect()

    def abort(self) -> None:
        """Close the connection without sending the rest of its responses."""
        self.session.mute(CLOSED)
        self._server.unsent.all_read(self)
        if self._paced is not None:
            self._paced.discard()
        self._transport.abort()

    def abort_unread(self) -> None:
        """Close the connection: the client does not read its responses, and they take too much memory."""
        session = self.session
        text = (
            f"closing {session}: it has {session.unread} bytes of unread responses, and all connections together "
            "exceed twice queued.max.response.bytes"
        )
        self._server.lines.log("unread responses", session.host, text, level=logging.WARNING)
        self.abort()

    def sweep(self, now: float, idle_s: float) -> None:
        """Close the connection if a deadline has passed and no response is due. The server calls this regularly."""
        session = self.session
        if session.active:
            session.active = False
            session.deadlines[Deadline.IDLE] = now + idle_s
        missed = session.missed(now)
        if missed is not None and not self._replies.queue:
            self._server.lines.log("idle connections", session.host, f"closing {session}: {missed.value}")
            self.abort()

    # -- serving ------------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Serve as many of the received frames as possible, and keep the other bytes."""
        session = self.session
        if not session.muted:
            self._serve()
        if session.muted & CLOSED:
            self._frames.release()
            return
        blocked = session.muted != 0
        self._frames.keep(blocked=blocked)
        if self._reading and blocked and self._frames.full:
            self._reading = False
            self._transport.pause_reading()
        elif not self._reading and not blocked and not session.gone:
            self._reading = True
            self._transport.resume_reading()
        if session.gone and not blocked and not self._replies.queue:
            self._disconnect()

    def _next_turn(self) -> None:
        """Serve the kept bytes, if there are any, after a wait."""
        self.session.unmute(TURN_TAKEN)
        self._frames.resume(blocked=self.session.muted != 0)
        self._turn()

    def _serve(self) -> None:
        out: Chunks = []
        size = 0
        left = FRAMES_A_TURN
        handler, session, frames, waiting = self._server.handler, self.session, self._frames, self._replies.queue
        try:
            while (
                not (waiting and self._must_wait()) and (frame := frames.next_frame(session.request_limit)) is not None
            ):
                session.active = True
                result = handler(frame, session)
                if isinstance(result, Deferred):
                    result = self._begin(result, frame)
                if type(result) is list:
                    if waiting:
                        self._replies.add().set(result)
                    else:
                        size += add_framed(out, result)
                        if size >= WRITE_BYTES:
                            self._write(out, size)
                            out, size = [], 0
                if session.muted:
                    break
                left -= 1
                if not left:
                    session.mute(TURN_TAKEN)
                    self._server.loop.call_soon(self._next_turn)
                    break
        except Exception as error:  # noqa: BLE001 - a bad request must not reach the event loop
            if not waiting:
                self._fail(error, out, size)
                return
            self._replies.fail(error)
            session.mute(IN_ORDER)
        if out:
            self._write(out, size)
        if session.draft and not session.muted & BUSY:
            self._server.unsent.drop_draft(session)

    def _begin(self, deferred: Deferred, frame: memoryview) -> Chunks | None:
        """Begin to wait for the response to a request. Return the response if no wait is needed."""
        answer: Any = deferred.answer
        if isinstance(answer, Coroutine):
            answer = start_eagerly(answer)
        if type(answer) is list or answer is None:
            return cast(Chunks | None, answer)
        reply = self._replies.add(deferred.admits)
        task = self._server.run(self._wait(answer, reply))
        if deferred.admits is not None:
            reply.task = task
        else:
            self.session.mute(BUSY)
            if deferred.keeps_frame:
                self._frames.pin(frame)
        return None

    def _must_wait(self) -> bool:
        """Return whether the next request must not be handled before earlier responses are sent."""
        head = self._frames.head()
        if head is None or (not self._server.draining and self._replies.admit(head)):
            return False
        self.session.mute(IN_ORDER)
        return True

    async def _wait(self, answer: Any, reply: Reply) -> None:
        """Answer a request whose response has to wait."""
        try:
            reply.set(await answer)
        except Exception as error:  # noqa: BLE001 - a bad request must not reach the event loop
            reply.set(error)
        if reply.task is None:
            self.session.unmute(BUSY)
            self._frames.unpin()
        self.session.active = True
        self._send_ready()

    def _send_ready(self) -> None:
        """Send the responses whose turn it is. Then handle the requests that waited for them."""
        out: Chunks = []
        size = 0
        waiting = self._replies.queue
        while waiting and waiting[0].ready:
            result = waiting.popleft().take()
            if isinstance(result, Exception):
                self._server.unsent.drop_draft(self.session)
                self._fail(result, out, size)
                return
            if result is not None:
                size += add_framed(out, result)
        if out and not self.session.muted & CLOSED:
            self._write(out, size)
        self._server.unsent.drop_draft(self.session)
        if self._server.draining and not waiting:
            self._disconnect()
        self.session.unmute(IN_ORDER)
        self._next_turn()

    def _write(self, out: Chunks, size: int) -> None:
        session, unsent, paced = self.session, self._server.unsent, self._paced
        if paced is not None and (size > STEP_BYTES or paced.waiting):
            session.mute(UNREAD)
            paced.add(out)
        elif size <= JOIN_BYTES or unsent.copies:
            self._transport.write(b"".join(out))
        else:
            self._transport.writelines(in_few_pieces(out))
        if session.muted & (UNREAD | CLOSED) == UNREAD:
            unsent.add_unread(self, sum([unsent.taken_by(piece, session) for piece in out]))

    def _fail(self, error: Exception, out: Chunks, size: int) -> None:
        """Close the connection, because a request cannot be answered. Send the responses to earlier requests first."""
        if not self.session.muted & CLOSED:
            self._server.log_failure(self.session, error)
            if out:
                self._write(out, size)
            self._disconnect()
        self._frames.release()

    def _disconnect(self) -> None:
        if not self.session.muted & CLOSED:
            self.session.mute(CLOSED)
            if self._paced is not None:
                self._paced.close()
            else:
                self._transport.close()


class Server:
    """A server that listens on one address or on several. The limits count all connections together."""

    def __init__(self, handler: Handler, limits: Limits | None = None, unsent: Unsent | None = None) -> None:
        """Create a server on the running event loop. `listen` binds its addresses.

        `handler(frame, session)` gets a writable view of one request, without its length. It returns the response as
        chunks, without the length, or None if there is no response, or a `Deferred` whose answer is either. The chunks
        must not be slices of the frame. The frame is valid until the handler returns or first waits, or as `Deferred`
        says. If the handler raises, the connection is closed.
        """
        limits = limits or Limits()
        self.handler = handler
        self.limits = limits
        self.connections: dict[ServerConnection, None] = {}
        """A dict keeps its order. The order of a set of objects differs between runs, so simulations would differ."""
        self.loop = asyncio.get_running_loop()
        self.unsent = unsent or Unsent(DEFAULT_LIMIT, copies=needs_join(self.loop))
        """The memory of responses that clients have not read, for all connections together."""
        self.lines = RepeatedLines(_log, "connections")
        """The log of what strangers can cause, at a bounded rate."""
        self.entrance = Entrance(self.loop, limits.connections, self.lines, self._shed)
        self.ports = Ports(partial(ServerConnection, self), self.entrance, self.lines, limits.backlog)
        self.buffers = ReadBuffers()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._next_id = 0
        self._drained: asyncio.Future[None] | None = None
        self._sweep_s = max(limits.idle_ms / 1000 / SWEEPS, 0.001)
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def draining(self) -> bool:
        """Whether `close` was called."""
        return self._drained is not None

    @property
    def port(self) -> int:
        """The port of the first listener."""
        return next(iter(self.listeners.values())).port

    @property
    def listeners(self) -> dict[str, Listener]:
        """The listeners that are bound, by name, each with its port."""
        return self.ports.listeners

    async def listen(self, listeners: Sequence[Listener]) -> None:
        """Bind all listeners, or none of them, and accept connections. Raises OSError if one cannot be bound."""
        await self.bind(listeners)
        await self.serve()

    async def bind(self, listeners: Sequence[Listener]) -> None:
        """Bind all listeners, or none of them, so that their ports are known. Raises OSError if one cannot be bound."""
        await self.ports.bind(listeners)
        if len(self.listeners) > 1:
            self.entrance.protect(next((each.name for each in listeners if each.protected), ""))
        if self.limits.idle_ms >= 0:
            self._sweeper = self.loop.call_later(self._sweep_s, self._sweep)

    async def serve(self) -> None:
        """Accept connections on all bound listeners. Raises OSError if another process listens on one meanwhile."""
        await self.ports.serve()

    async def close(self) -> None:
        """Stop listening and serving. Wait up to `drain_ms` for requests in progress, then close all connections."""
        if self._drained is not None:
            return
        self.ports.close()
        self.entrance.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._drained = self.loop.create_future()
        for connection in tuple(self.connections):
            connection.drain()
        if self.connections:
            timer = self.loop.call_later(self.limits.drain_ms / 1000, self._stop_waiting)
            await self._drained
            timer.cancel()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.abort_all()
        await self.ports.closed()

    def abort_all(self) -> None:
        """Close all connections without sending the rest of their responses. Clients may connect again."""
        for connection in tuple(self.connections):
            connection.abort()

    def _stop_waiting(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    # -- called by connections ----------------------------------------------------------------------------------

    def register(self, connection: ServerConnection) -> int:
        """Register a new connection and return its id. Return 0 if the server is closing."""
        if self._drained is not None:
            return 0
        self.connections[connection] = None
        self._next_id += 1
        return self._next_id

    def _shed(self, count: int) -> None:
        """Close the most idle connections for those of the protected listener, as Kafka does."""
        for connection in most_idle(self.connections, self.entrance.protected, count):
            text = f"closing {connection.session}, which is idle: there are too many connections"
            self.lines.log("replaced connections", connection.session.host, text, level=logging.WARNING)
            connection.abort()
            self._leave(connection)

    def gone(self, connection: ServerConnection) -> None:
        """Unregister a lost connection."""
        self._leave(connection)
        self.connections.pop(connection, None)
        if not self.connections:
            self._stop_waiting()

    def _leave(self, connection: ServerConnection) -> None:
        if connection.arrival is not None:
            self.entrance.leave(connection.arrival)

    def log_failure(self, session: Session, error: Exception) -> None:
        """Log why a request cannot be answered. If that is a mistake of ours, log where."""
        if isinstance(error, BadFrameError):
            self.lines.log("bad requests", session.host, f"closing {session}: {error}", level=logging.WARNING)
            return
        text = f"closing {session}: a request failed: {error!r}"
        self.lines.log(f"failed requests ({place_of(error)})", session.host, text, level=logging.ERROR, error=error)

    def run(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run a request that has to wait, as a task."""
        task = self.loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def _sweep(self) -> None:
        now, idle_s = self.loop.time(), (SWEEPS - 0.5) * self._sweep_s  # the last sweep may come a moment early
        for connection in tuple(self.connections):
            connection.sweep(now, idle_s)
        self._sweeper = self.loop.call_later(self._sweep_s, self._sweep)
