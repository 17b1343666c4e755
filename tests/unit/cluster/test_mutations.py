"""The known bugs that tests put into the code of replication: each patch still fits the code that it replaces."""

from __future__ import annotations

import pytest

from oncelog.cluster.controller import reconcile
from oncelog.cluster.follower import Following
from support.checked_patch import CheckedPatch, Patch, StalePatchError, can_be_patched
from support.cluster_mutations import MUTATIONS
from support.replica_mutations import RARE, SEEDS

EACH = [mutation for mutation in dict.fromkeys((*MUTATIONS, *SEEDS, *RARE)) if can_be_patched(mutation)]


@pytest.mark.parametrize("mutation", EACH, ids=lambda mutation: f"{mutation.__module__}.{mutation.__name__}")
def test_mutation_fits_the_code(mutation: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation(CheckedPatch(monkeypatch))


@pytest.mark.parametrize(
    ("name", "replacement", "message"),
    [
        ("_gone", lambda _self: None, "Following._gone does not exist"),
        ("received", lambda _self, _fetch: None, "too many positional arguments"),
        ("next_fetch", lambda _self, _start, _fetch: None, "missing a required argument"),
        ("next_fetch", property(lambda _self: None), "is a property"),
    ],
)
def test_patch_that_does_not_fit_is_rejected(
    name: str, replacement: object, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StalePatchError, match=message):
        CheckedPatch(monkeypatch).setattr(Following, name, replacement)


def test_patch_that_is_never_called_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    patch = CheckedPatch(monkeypatch)
    patch.setattr(reconcile, "_next", lambda _view, state: state)
    assert patch.unused == ["_next"]
    reconcile._next(None, None)  # type: ignore[arg-type]
    assert patch.unused == []
