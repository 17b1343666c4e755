"""Answer one request frame: decode the header, check the version, decode the request, handle it, encode the response.

The decoder and the handler of each (API, version) are looked up once and cached, to keep the work for a request small.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from types import ModuleType
from typing import Any

from oncelog.broker.quotas.metering import UNMETERED, is_of_brokers
from oncelog.broker.requests.apis import SERVED
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.large_messages import (
    FEW_ITEMS,
    MOST_ITEMS,
    SMALL_FRAME,
    encoded,
    encoded_elsewhere,
    free,
    has_many_items,
)
from oncelog.broker.requests.operations import CLUSTER, NotAuthorizedError
from oncelog.broker.requests.request_times import ApiTimes, RequestTimes
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.workers import Workers
from oncelog.net.frames import BUFFER_BYTES
from oncelog.net.server import BadFrameError, Chunks, Deferred, Session
from oncelog.protocol.apis import ApiKey, messages
from oncelog.protocol.codec import TooManyItemsError, codec
from oncelog.protocol.error_responses import error_answer
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.headers import RequestHeader, decode_request_header, encode_response_header
from oncelog.protocol.kinds import AclOperation
from oncelog.protocol.schema import DecodeError, Message

Decode = Callable[[], Awaitable[tuple[Message, int]]]


class BadRequestError(BadFrameError):
    """Raised for a frame that cannot be answered. The server closes the connection, as Kafka does."""


def _module(api_key: int) -> ModuleType:
    return importlib.import_module(f"oncelog.broker.handlers.{SERVED[api_key].handler.partition('.')[0]}")


def import_record_handlers() -> None:
    """Import the handlers of Produce and Fetch early. An import fails if no file descriptor is free."""
    _module(ApiKey.PRODUCE)
    _module(ApiKey.FETCH)


def bound_handler(services: HandlerServices, api_key: int) -> Handler:
    """Import the module of an API's handler, and return the handler."""
    name = SERVED[api_key].handler.partition(".")[2]
    handler: Handler = getattr(_module(api_key), f"bind_{name}" if name else "bind")(services)
    return handler


class _Route:
    """One API in one version."""

    __slots__ = ("decode", "decode_at_most", "handle", "times", "times_of_followers")

    def __init__(self, api_key: int, version: int, handle: Handler, times: RequestTimes) -> None:
        request, _ = messages(ApiKey(api_key))
        compiled = codec(request, version)
        self.decode: Callable[[memoryview, int], tuple[Message, int]] = compiled.decode
        self.decode_at_most: Callable[[memoryview, int, int], tuple[Message, int]] = compiled.decode_at_most
        self.handle = handle
        name = "FetchConsumer" if api_key == ApiKey.FETCH else request.__name__.removesuffix("Request")
        self.times: ApiTimes = times.of(name)
        self.times_of_followers = times.of("FetchFollower") if api_key == ApiKey.FETCH else None

    def times_of(self, request: Any) -> ApiTimes:
        """Return where a request is counted. Kafka counts the Fetches of followers apart."""
        followers = self.times_of_followers
        if followers is not None and (request.replica_id >= 0 or request.replica_state.replica_id >= 0):
            return followers
        return self.times


class Dispatcher:
    """The server's frame handler."""

    def __init__(self, services: HandlerServices, times: RequestTimes | None = None) -> None:
        """`times` counts the requests."""
        self._services = services
        self._times = times or RequestTimes()
        self._workers: Workers = services.runtime.workers
        self._logger: logging.Logger = services.runtime.logger
        self._authorizer = services.authorizer
        self._cache = services.cache
        self._metering = services.metering
        self._clock = services.metering.busy
        self._routes: dict[tuple[int, int], _Route] = {}
        self._handlers: dict[int, Handler] = {}
        """One handler for all versions of an API, because a handler may limit what its requests take together."""
        self._large = {key: asyncio.Semaphore(served.most_large) for key, served in SERVED.items() if served.most_large}
        """The free places for large requests of an API that limits them."""

    def __call__(self, frame: memoryview, session: Session) -> Chunks | Deferred | None:
        """Answer one frame. Raises BadFrameError if it has no response; the server then closes the connection."""
        if session.login is not None and session.login.raw:
            return [session.login.authenticate_raw(frame)]
        began = self._clock()
        header, position = _header(frame, session)
        api_key, version = header.api_key, header.api_version
        route = self._routes.get((api_key, version))
        if route is None:
            route = self._new_route(api_key, version)
            if route is None:
                return self._unsupported_api_versions(header.correlation_id)
        context = RequestContext(
            api_key, version, header.correlation_id, header.client_id or "", session, self._authorizer
        )
        context.began = began
        if self._cache.image.quotas:
            self._measure(context, len(frame) - position)
        try:
            # Bytes after the request are ignored, as in Kafka: librdkafka pads some of its requests.
            if len(frame) <= SMALL_FRAME:
                request, _ = route.decode(frame, position)
            else:
                request, _ = route.decode_at_most(frame, position, FEW_ITEMS)
        except TooManyItemsError:
            return _timed(self._decode_in_thread(route, frame, position, context), context)
        except DecodeError as error:
            raise BadRequestError(f"{ApiKey(api_key).name} v{version}: {error}") from error
        try:
            response = route.handle(request, context)
            if response is None or isinstance(response, Message):
                chunks = None
                if response is None:
                    _count_unanswered(context)
                else:
                    chunks = self._encode(response, context)
                route.times_of(request).answered(began, self._clock())
                return chunks
        except BadFrameError:
            raise
        except Exception as error:  # noqa: BLE001 - no error may discard the earlier responses of the connection
            code = self._failed(error, request, context)
            rejected = self._encode(error_answer(request, version, code), context)
            route.times_of(request).answered(began, self._clock())
            return rejected
        if not isinstance(response, Deferred):
            response = Deferred(response)
        response.answer = self._later(response.answer, request, context)
        return _timed(response, context)

    def _measure(self, context: RequestContext, size: int) -> None:
        """Begin to count a request of `size` bytes against the quotas of its client, unless it has none."""
        key, version = context.api_key, context.api_version
        if key in UNMETERED or (is_of_brokers(key, version) and context.may(AclOperation.CLUSTER_ACTION, *CLUSTER)):
            return
        context.meter = self._metering.meter(context.session, context.client_id, key, version, size)

    def _new_route(self, api_key: int, version: int) -> _Route | None:
        """Return the route of an API in a version, or None for ApiVersions in an unknown version.

        Raises BadRequestError if another API or its version is not supported.
        """
        served = SERVED.get(api_key)
        if served is None:
            raise BadRequestError(f"API key {api_key} is not supported")
        if not served.min_version <= version <= served.max_version:
            if api_key == ApiKey.API_VERSIONS:
                return None
            raise BadRequestError(f"{ApiKey(api_key).name} v{version} is not supported")
        route = self._routes[api_key, version] = _Route(api_key, version, self._handler(api_key), self._times)
        return route

    def _handler(self, api_key: int) -> Handler:
        if api_key not in self._handlers:
            self._handlers[api_key] = bound_handler(self._services, api_key)
        return self._handlers[api_key]

    def _decode_in_thread(self, route: _Route, frame: memoryview, position: int, context: RequestContext) -> Deferred:
        refers_to_frame = SERVED[context.api_key].refers_to_frame
        kept = frame if refers_to_frame else _copied(frame)
        decode: list[Decode] = [partial(self._workers.compute, route.decode_at_most, kept, position, MOST_ITEMS)]
        places = self._large.get(context.api_key)
        if places is None:
            answer = self._answer_decoded(route, decode, context)
        else:
            answer = self._answer_in_turn(places, route, decode, context)
        return Deferred(answer, keeps_frame=refers_to_frame)

    async def _answer_in_turn(
        self, places: asyncio.Semaphore, route: _Route, decode: list[Decode], context: RequestContext
    ) -> Chunks | None:
        """Decode and handle a request when a place is free. A Fetch takes about 1 KB per partition."""
        await places.acquire()
        held = [places]

        def release() -> None:
            if held:
                held.pop().release()

        def on_wait(holder: list[Message | None]) -> None:
            release()
            self._free(holder)

        context.on_wait = on_wait
        try:
            return await self._answer_decoded(route, decode, context)
        finally:
            release()

    async def _answer_decoded(self, route: _Route, decode: list[Decode], context: RequestContext) -> Chunks | None:
        """Answer a request that a worker thread decodes.

        `decode` has one function, which is removed from the list, so that nothing holds the frame during a long wait.
        """
        try:
            request, _ = await decode.pop()()
        except (DecodeError, ProtocolError) as error:
            raise BadRequestError(f"{ApiKey(context.api_key).name} v{context.api_version}: {error}") from error
        answer = await self._later(self._handled(route, request, context), request, context)
        holder: list[Message | None] = [request]
        del request
        self._free(holder)
        return answer

    def _free(self, holder: list[Message | None]) -> None:
        """Free the only message in a list in a worker thread. The caller holds no other reference to it."""
        self._workers.spawn(self._workers.compute(free, holder), "free a request")

    async def _handled(self, route: _Route, request: Message, context: RequestContext) -> Message | None:
        response = route.handle(request, context)
        if isinstance(response, Deferred):
            response = response.answer
        message: Message | None = await response if isinstance(response, Awaitable) else response
        return message

    async def _later(
        self, pending: Awaitable[Message | None], request: Message, context: RequestContext
    ) -> Chunks | None:
        """Answer a request when its response is ready."""
        waits_from = self._clock()
        try:
            chunks = await self._encoded([await pending], context)
        except BadFrameError:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            code = self._failed(error, request, context)
            if has_many_items(request):
                answer = await self._workers.compute(error_answer, request, context.api_version, code)
            else:
                answer = error_answer(request, context.api_version, code)
            chunks = await self._encoded([answer], context)
        times = self._routes[context.api_key, context.api_version].times_of(request)
        times.answered_late(context.began, waits_from, self._clock())
        return chunks

    async def _encoded(self, response: list[Message | None], context: RequestContext) -> Chunks | None:
        """Encode the only response in a list, in a worker thread if the response has many elements."""
        if response[0] is None:
            _count_unanswered(context)
            return None
        if not has_many_items(response[0]):
            return self._encode(response[0], context)
        if context.meter is not None:
            context.meter.finish(response[0])
        key, version = context.api_key, context.api_version
        return await self._workers.compute(encoded_elsewhere, response, key, version, context.correlation_id)

    def _failed(self, error: Exception, request: Message, context: RequestContext) -> ErrorCode:
        """Log that a handler failed, or that its response cannot be encoded. Return the error for the client."""
        what = f"{ApiKey(context.api_key).name} v{context.api_version} of client {context.client_id[:100]!r}"
        code = ErrorCode.UNKNOWN_SERVER_ERROR
        if isinstance(error, ProtocolError):
            code = error.code
            if not isinstance(error, NotAuthorizedError):  # the authorizer has logged it, at a bounded rate
                self._logger.info("rejected %s: %s", what, str(error))
        else:
            self._logger.error("%s failed; answering with %s", what, code.name, exc_info=error)
        if context.api_key == ApiKey.PRODUCE and not getattr(request, "acks", 0):
            raise BadRequestError(f"{what} failed, and with acks=0 no response can report it")
        return code

    @staticmethod
    def _encode(response: Message, context: RequestContext) -> Chunks:
        if context.meter is not None:
            context.meter.finish(response)
        return encoded(response, context.api_key, context.api_version, context.correlation_id)

    @staticmethod
    def _unsupported_api_versions(correlation_id: int) -> Chunks:
        """Answer an unknown version of ApiVersions in version 0, so that the client can retry (KIP-511).

        The response has only the known versions of ApiVersions.
        """
        from oncelog.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse

        own = SERVED[ApiKey.API_VERSIONS]
        line = ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=own.min_version, max_version=own.max_version)
        response = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[line])
        return [encode_response_header(ApiKey.API_VERSIONS, 0, correlation_id), response.encode(0)]


def _count_unanswered(context: RequestContext) -> None:
    """Count a request that has no response, if a quota may limit it."""
    if context.meter is not None:
        context.meter.finish(None)


def _timed(response: Deferred, context: RequestContext) -> Deferred:
    """Count the time of later work on a request, if a quota may limit it."""
    if context.meter is not None:
        response.answer = context.meter.timed(response.answer)
    return response


def _header(frame: memoryview, session: Session) -> tuple[RequestHeader, int]:
    """Return the header of a request that the client's login admits, and where the request begins."""
    try:
        found = decode_request_header(frame)
    except DecodeError as error:
        raise BadRequestError(f"invalid request header: {error}") from error
    if session.login is not None:
        session.login.check(found[0].api_key)
    return found


def _copied(frame: memoryview) -> memoryview:
    """Return a copy of the frame outside the read buffer, which the next requests need."""
    return memoryview(bytes(frame)) if len(frame) <= BUFFER_BYTES else frame


def describe_request(frame: memoryview, session: Session) -> str:
    """Return the API, its version, the client id and the connection of a request, as text for a log line."""
    try:
        header, _ = decode_request_header(frame)
    except DecodeError:
        return f"a request without a valid header on connection {session.connection_id} from {session}"
    api = ApiKey(header.api_key).name if header.api_key in SERVED else f"API key {header.api_key}"
    where = f"connection {session.connection_id} from {session}"
    return f"{api} v{header.api_version} of client {header.client_id!r} on {where}"
