"""Send damaged frames, messages of SASL and TLS records to a secured broker, and check that it serves others meanwhile.

Each input is one connection of a stranger. It sends valid bytes with damage, then a request that needs a login, and
reads until the broker closes the connection. The broker must close it, must not answer the request, and must still
serve a client that is logged in. Seed and number of an input give the same damage again; keys and nonces differ.
"""

from __future__ import annotations

import argparse
import random
import ssl
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from oncelog.net.sasl import SCRAM_HASHES, SaslError, Scram
from oncelog.protocol.apis import ApiKey
from oncelog.protocol.apis import messages as messages_of
from oncelog.protocol.messages.api_versions import ApiVersionsRequest
from support.attacker import ASK, Attacker, Call, choose, encoded, plain, say
from support.fuzzing import any_message, damaged
from support.locked_servers import Locked, LockedOncelog
from support.secured_kafka import PASSWORD, USER
from support.wire import WAIT_S, Wire

ASKED = 0x5EC12E75
"""The correlation id of the request that must not be answered."""
AT_ONCE = 4
"""Strangers at the same time."""
BETWEEN = 40
"""Inputs between two requests of the client that is logged in."""
MECHANISMS = ("PLAIN", *SCRAM_HASHES)
VERSIONS: Call = (ApiVersionsRequest(client_software_name="fuzz", client_software_version="1"), 3)


class Victim:
    """A server, and a client that is logged in all the time."""

    def __init__(self, locked: Locked) -> None:
        self.locked = locked
        self.tls = ssl.create_default_context(cafile=str(locked.ca))
        self._wire = Wire(locked.addresses["LOGIN"], tls=self.tls, login=(USER, PASSWORD))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._wire.close()

    def check(self) -> None:
        """Check that the client is served on its connection."""
        assert not self._wire.call(*ASK).error_code

    def stranger(self, chance: random.Random) -> Attacker:
        """Return a new connection of a stranger, with TLS or without."""
        listener = chance.choice(("LOGIN", "OPEN"))
        return Attacker(self.locked.addresses[listener], self.tls if listener == "LOGIN" else None)


# -- inputs ------------------------------------------------------------------------------------------------------------

Input = Callable[[Victim, random.Random], bytes]
"""Send an input on a new connection, and return the rest of the broker's answers to it."""


def _calls(chance: random.Random) -> list[Call]:
    """Return the requests of a login with a wrong password."""
    mechanism = chance.choice(MECHANISMS)
    token = plain(USER, "guess") if mechanism == "PLAIN" else say(f"n,,n={USER},r=clients-nonce")
    final = [] if mechanism == "PLAIN" else [say("c=biws,r=clients-nonce,p=" + "A" * 43 + "=")]
    found = [VERSIONS, choose(mechanism, chance.randint(0, 1)), token, *final]
    return found[chance.randint(0, 2) :]


def frames(victim: Victim, chance: random.Random) -> bytes:
    """Damage a stream of requests, also the lengths of their frames."""
    data = damaged(b"".join(map(encoded, _calls(chance))), chance)
    with victim.stranger(chance) as stranger:
        stranger.write(data)
        return ended(stranger)


def requests(victim: Victim, chance: random.Random) -> bytes:
    """Send whole requests of any API, some of them damaged within their frame."""
    sent = [encoded(each) for each in _calls(chance)] if chance.random() < 0.5 else []
    for _ in range(chance.randint(1, 3)):
        cls = messages_of(chance.choice(tuple(ApiKey)))[0]
        version = chance.randint(cls.MIN_VERSION, cls.MAX_VERSION)
        frame = encoded((any_message(cls, version, chance), version))
        body = damaged(frame[4:], chance) if chance.random() < 0.5 else frame[4:]
        sent.insert(chance.randint(0, len(sent)), struct.pack(">i", len(body)) + body)
    with victim.stranger(chance) as stranger:
        stranger.write(b"".join(sent))
        return ended(stranger)


def tokens(victim: Victim, chance: random.Random) -> bytes:
    """Damage the messages of a mechanism. The last one of SCRAM has the nonce of the broker."""
    mechanism = chance.choice(MECHANISMS)
    with victim.stranger(chance) as stranger:
        stranger.call(choose(mechanism))
        if mechanism == "PLAIN":
            stranger.write(encoded(say(damaged(f"\0{USER}\0guess".encode(), chance))))
            return ended(stranger)
        client = Scram(mechanism, USER, "guess", "clients-nonce")
        first = client.first()
        [challenge] = stranger.call(say(damaged(first, chance) if chance.random() < 0.3 else first))
        if challenge is not None and not challenge.error_code:
            try:
                final = client.answer(bytes(challenge.auth_bytes)) or b""
            except SaslError:
                final = b"c=biws,r=clients-nonce,p=eA=="
            stranger.write(encoded(say(damaged(final, chance))))
        return ended(stranger)


def records(victim: Victim, chance: random.Random) -> bytes:
    """Damage one flight of a TLS handshake, or the requests after it."""
    listener = chance.choice(("TLS", "LOGIN", "MUTUAL"))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    machine = victim.tls.wrap_bio(incoming, outgoing, server_hostname="localhost")
    good = chance.randint(0, 2)
    """How many flights are sent without damage."""
    with Attacker(victim.locked.addresses[listener]) as stranger:
        for number in range(good + 1):
            try:
                machine.do_handshake()
                machine.write(encoded(VERSIONS))
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:  # the broker has sent an alert
                break
            flight = outgoing.read()
            stranger.write(damaged(flight, chance) if number == good else flight)
            if number < good:
                incoming.write(stranger.some())
        stranger.end()
        stranger.rest()
        return b""  # it is encrypted


INPUTS: dict[str, Input] = {each.__name__: each for each in (frames, requests, tokens, records)}


def ended(stranger: Attacker) -> bytes:
    """Send the request that needs a login, send no more, and return what the broker answers until it closes."""
    stranger.write(encoded(ASK, ASKED))
    stranger.end()
    return stranger.rest()


# -- runs --------------------------------------------------------------------------------------------------------------


def answered(data: bytes) -> Iterator[int]:
    """Yield the correlation ids of responses. A message of a mechanism without a header yields some other number."""
    while len(data) >= 8:
        size, number = struct.unpack_from(">ii", data)
        assert size >= 0, size
        yield number
        data = data[4 + size :]


def attack(victim: Victim, kind: str, seed: int, number: int) -> None:
    """Send one input. Raise AssertionError with what sends it again if the broker does something wrong."""
    chance = random.Random(f"{kind} {seed} {number}")
    try:
        got = INPUTS[kind](victim, chance)
        assert ASKED not in answered(got), "the broker answered a request before the login"
    except Exception as error:
        again = f"scripts/fuzz sockets --seed {seed} --first {number} --inputs 1 {kind}"
        raise AssertionError(f"{again}: {error!r}") from error


def fuzz(locked: Locked, kind: str, count: int, seed: int, first: int = 0) -> None:
    """Send `count` inputs, several at a time. The victim asks between them. Raises AssertionError."""
    with Victim(locked) as victim, ThreadPoolExecutor(AT_ONCE) as strangers:
        for begin in range(first, first + count, BETWEEN):
            numbers = range(begin, min(begin + BETWEEN, first + count))
            sent = [strangers.submit(attack, victim, kind, seed, number) for number in numbers]
            victim.check()
            for each in sent:
                each.result(WAIT_S)
            victim.check()


def main() -> None:
    """Run `scripts/fuzz sockets` from the command line."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz sockets", description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=10_000, help="of all kinds together")
    parser.add_argument("--first", type=int, default=0, help="the number of the first input")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("kinds", nargs="*", help=f"of {', '.join(INPUTS)}; all without")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    chosen = options.kinds or list(INPUTS)
    with tempfile.TemporaryDirectory(prefix="oncelog-fuzz-") as folder:
        locked = LockedOncelog(Path(folder))
        try:
            for kind in chosen:
                count = max(1, options.inputs // len(chosen))
                start = time.monotonic()
                fuzz(locked, kind, count, options.seed, options.first)
                locked.check()
                print(
                    f"{kind:10} {count:7,} connections, {count / (time.monotonic() - start):6,.0f} per second",
                    flush=True,
                )
        finally:
            locked.stop()
    print("no fault; the broker served its client all the time, and logged no error")


if __name__ == "__main__":
    main()
