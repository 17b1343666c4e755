"""The states of a transaction and the transitions between them (after Kafka's `TransactionState`).

```
Empty ---------> Ongoing ---> PrepareCommit ---> CompleteCommit
  |                 |                               |
  |                 +-------> PrepareAbort ----> CompleteAbort
  +--(version 2)--------------^   ^---(version 2)---+ from either Complete state
```

From the Complete states a transaction goes on to Empty (InitProducerId) or Ongoing (the next transaction). Dead and
PrepareEpochFence are Kafka's transient states: they exist for tools, no record and no memory of ours holds them.
"""

from __future__ import annotations

from enum import IntEnum


class TransactionState(IntEnum):
    """Values are those in the log's records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def text(self) -> str:
        """The name as tools and the wire have it: `PrepareCommit`."""
        return self.name.title().replace("_", "")


STATES_BY_TEXT = {state.text: state for state in TransactionState}

_S = TransactionState

PREVIOUS_STATES: dict[TransactionState, frozenset[TransactionState]] = {
    _S.EMPTY: frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.ONGOING: frozenset({_S.ONGOING, _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.PREPARE_COMMIT: frozenset({_S.ONGOING}),
    _S.PREPARE_ABORT: frozenset({_S.ONGOING, _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.COMPLETE_COMMIT: frozenset({_S.PREPARE_COMMIT}),
    _S.COMPLETE_ABORT: frozenset({_S.PREPARE_ABORT}),
    _S.DEAD: frozenset(),
    _S.PREPARE_EPOCH_FENCE: frozenset(),
}
"""Which states each state may follow."""

PREPARED = frozenset({_S.PREPARE_COMMIT, _S.PREPARE_ABORT})
"""Decided, and on the way to completion: nothing else may happen to the transaction."""

COMPLETED = frozenset({_S.COMPLETE_COMMIT, _S.COMPLETE_ABORT})

EXPIRABLE = frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT})
"""States in which an idle transactional id may be forgotten."""

PREPARE_FOR = {True: _S.PREPARE_COMMIT, False: _S.PREPARE_ABORT}
"""The prepared state by "committed"."""

COMPLETE_FOR = {True: _S.COMPLETE_COMMIT, False: _S.COMPLETE_ABORT}
"""The completed state by "committed"."""
