"""Damaged frames, logins and TLS records over real sockets. `scripts/fuzz sockets` sends many more."""

from __future__ import annotations

import random

import pytest

from support.attacker import ASK, choose, encoded
from support.locked_servers import Locked
from support.secured_kafka import PASSWORD, USER
from support.socket_fuzzing import ASKED, INPUTS, Victim, answered, ended, fuzz


@pytest.mark.parametrize("kind", INPUTS)
def test_damage_ends_its_connection_only(locked: Locked, kind: str) -> None:
    seed = random.SystemRandom().randrange(2**31)
    print(f"seed {seed}")
    fuzz(locked, kind, 200, seed)
    locked.check()


def test_answer_to_a_stranger_is_reported_with_its_input(locked: Locked, monkeypatch: pytest.MonkeyPatch) -> None:
    def guessed(victim: Victim, chance: random.Random) -> bytes:
        """Log in. Kafka answers nothing after the end of a stranger's bytes."""
        with victim.stranger(chance) as stranger:
            stranger.log_in(USER, PASSWORD)
            stranger.write(encoded(ASK, ASKED))
            return stranger.some() + (ended(stranger) if locked.name == "oncelog" else b"")

    monkeypatch.setitem(INPUTS, "guessed", guessed)
    for number in range(10):  # with TLS and without
        again = f"--seed 5 --first {number} --inputs 1 guessed: .*answered a request"
        with pytest.raises(AssertionError, match=again):
            fuzz(locked, "guessed", 1, 5, number)


def test_correlation_ids_of_responses_are_found() -> None:
    frames = encoded(choose("PLAIN"))  # a request, whose frame also begins with a length
    assert len(list(answered(frames + encoded(ASK, ASKED)))) == 2
    assert list(answered(b"\0\0\0\4" + ASKED.to_bytes(4, "big"))) == [ASKED]
    assert list(answered(b"")) == []
