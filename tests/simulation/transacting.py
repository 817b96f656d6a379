"""Transactions over several partitions: the drivers' operations, and the expected records of readers.

At every step, in every replica: below its last stable offset a record of a transaction is visible if and only if
the log of ``__transaction_state`` has decided to commit that transaction. So nothing is visible before the
decision, and nothing of an aborted transaction ever; of a committed one everything is visible that no older open
transaction delays. At the end, when all transactions are over, nothing is delayed: each is completely visible, or
not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from stratalog.engine.records.transact import BatchTransaction
from stratalog.engine.records.transactions import finish_transactions
from stratalog.engine.state import transaction_state
from stratalog.engine.state.internal_topics import TRANSACTIONS_TOPIC
from stratalog.engine.state.transaction_state import ENDING, State, TransactionStates
from stratalog.partitions.isolation import Isolation
from stratalog.partitions.listing import DataFile, ReplicaLog
from stratalog.partitions.transactions import transactions_of
from tests.simulation.content import Content
from tests.simulation.oracle import Key, Oracle, Token
from tests.simulation.scheduler import Violation

if TYPE_CHECKING:
    from tests.simulation.actor import Actor

ProducerEpoch = tuple[str, int]
"""A producer id, and the epoch of one of its transactions."""


@dataclass(slots=True)
class Begun:
    """A transaction that a driver has begun."""

    tokens: dict[Token, Key] = field(default_factory=dict)
    """The tokens of the acknowledged appends."""
    committed: bool = False
    """Whether its driver got the answer that it is committed."""


class TransactionOracle:
    """The decisions by ``__transaction_state``, and the appended records."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._states = TransactionStates()
        self.begun: dict[ProducerEpoch, Begun] = {}
        self.owner: dict[Token, ProducerEpoch] = {}
        """The transaction of every record that was tried in one."""
        self._decided: dict[ProducerEpoch, bool] = {}

    @property
    def decided(self) -> Mapping[ProducerEpoch, bool]:
        """The outcome of every transaction that is decided by now: whether it is committed."""
        topic_id = self._oracle.image.topic_ids.get(TRANSACTIONS_TOPIC)
        if topic_id is None:
            return {}
        committed = self._oracle.history((topic_id, 0)).committed
        while (token := committed.get(self._states.next_offset)) is not None:
            _, _, value = token.partition(b":")
            record = transaction_state.decode(_name(value), value)
            self._states = self._states.apply(self._states.next_offset, [record])
            present = self._states.transactions.get(record.transactional_id)
            if present is not None and present.state in ENDING:
                ended = present.producer_id, present.producer_epoch - 1
                self._decided[ended] = present.state is State.PREPARE_COMMIT
        return self._decided

    def check(self, log: ReplicaLog, contents: Mapping[DataFile, Content], who: str) -> None:
        """Check one replica. Raises: Violation. The decisions of an abandoned log are unknown."""
        topic_id = self._oracle.image.topic_ids.get(TRANSACTIONS_TOPIC)
        if topic_id is not None and self._oracle.history((topic_id, 0)).unclean:
            return
        transactions = transactions_of(log, lambda file: contents[file].footer)
        hidden = transactions.hidden(Isolation.READ_COMMITTED)
        end = transactions.end(Isolation.READ_COMMITTED, log)
        decided = self.decided
        for token, offset, is_seen in _records(log, contents, hidden):
            owner = self.owner.get(token)
            if owner is None or offset >= end:
                continue
            if owner not in decided:
                raise Violation(f"T1: {token!r} at {offset} is below the last stable offset, and undecided {who}")
            if is_seen != decided[owner]:
                raise Violation(f"T1: {token!r} at {offset}: committed {decided[owner]}, seen {is_seen} {who}")

    def check_end(self, key: Key, log: ReplicaLog, contents: Mapping[DataFile, Content], who: str) -> None:
        """Check one replica at the end. Raises: Violation."""
        self.check(log, contents, who)
        transactions = transactions_of(log, lambda file: contents[file].footer)
        if transactions.last_stable_offset != log.high_watermark:
            raise Violation(f"T2: {transactions} though nothing is in progress, of {log.high_watermark} {who}")
        there = {token for token, _, _ in _records(log, contents, transactions.hidden(Isolation.READ_COMMITTED))}
        for owner, begun in self.begun.items():
            if begun.committed and not self.decided.get(owner):
                raise Violation(f"T2: {owner} got the answer that it is committed, and it is not")
            lost = [t for t, where in begun.tokens.items() if where == key and t not in there]
            if self.decided.get(owner) and lost and log.local_start == 0:
                raise Violation(f"T2: {lost} of {owner}, which is committed, are not there {who}")

    def check_settled(self, content: Content, what: str) -> None:
        """Check a remote segment: ``control IS NULL`` selects the committed records. Raises: Violation."""
        decided = self.decided
        for token, control in zip(content.tokens, content.control, strict=True):
            owner = self.owner.get(token)
            if owner is not None and decided.get(owner) is not (control is None):
                raise Violation(
                    f"T1: {token!r} is remote, control {control}, decided {decided.get(owner)}: {what}"
                )


def _name(value: bytes) -> bytes:
    return str(msgspec.json.decode(value)["transactional_id"]).encode()


def _records(
    log: ReplicaLog, contents: Mapping[DataFile, Content], hidden: frozenset[object]
) -> Iterator[tuple[Token, int, bool]]:
    """Token, offset, and whether readers of committed records see it if it is below their end."""
    for link in log.chain:
        content = contents[link.file]
        for offset in range(link.start, min(link.end, content.next_offset)):
            index = offset - content.base_offset
            plain = content.control[index] is None if link.name.merged else link.name not in hidden
            yield content.tokens[index], offset, plain


# -------------------------------------------------------------------------------------- the actors


def transact(actor: Actor, name: str, number: int, commit: str, timeout_ms: int, *partitions: int) -> str:
    """Run a transaction of some appends, one after the other; each try is a separate one."""
    from tests.simulation.actor import batch, check_report
    from tests.simulation.world import TOPIC

    world = actor.world
    with BatchTransaction(
        actor.ports.metadata, actor.ports.storage, actor.ports.execution, actor.ports.memory, name, timeout_ms
    ) as t:
        owner = t.producer_id, t.producer_epoch
        begun = world.transactions.begun[owner] = Begun()
        for index, partition in enumerate(partitions):
            key = world.topic_id, partition
            tokens = [f"{partition}/{name}.{owner[0]}.{owner[1]}/{index}".encode()]
            world.transactions.owner |= dict.fromkeys(tokens, owner)
            report = t.append_batches(TOPIC, {partition: [batch(tokens)]})
            check_report(actor, report)
            if world.ledger.acknowledge(key, tokens, report) in ("acknowledged", "duplicate"):
                begun.tokens |= dict.fromkeys(tokens, key)
        report = t.commit() if commit == "commit" else t.abort()
        check_report(actor, report)
        begun.committed = report.totals["outcome"] == "committed"
        world.ledger.count(f"transactions {report.totals['outcome']}")
        return str(report.totals["outcome"])


def finish(actor: Actor, *_: int) -> str:
    """End all abandoned transactions."""
    from tests.simulation.actor import check_report

    return check_report(
        actor,
        finish_transactions(actor.ports.metadata, actor.ports.storage, actor.ports.execution, actor.ports.memory),
    )
