"""Commands of the threads of one driver, in one batch (protocol section 5: one commit, each its own answer)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from stratalog.engine.metadata.commands import Command, Decision, FenceBroker, RegisterBroker
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.metadata.topic_commands import AlterConfigs, CreateTopic, DeleteTopic
from stratalog.engine.metadata.voter_commands import RemoveVoter
from stratalog.engine.quorum.client import MetadataClient
from stratalog.partitions.errors import (
    InvalidCallError,
    NoMajorityError,
    OutcomeUnknownError,
    StorageError,
    TopicAlreadyExistsError,
    UnknownBrokerError,
    UnknownTopicOrPartitionError,
)
from tests.unit.metadata_harness import an_id
from tests.unit.quorum_harness import HookedStore, Quorum
from tests.unit.together import together


class Crowd:
    """Threads that submit a command each, all of them while the first command is being committed."""

    def __init__(self, client: MetadataClient, commands: list[Command[object]]) -> None:
        self._client = client
        self._threads = [threading.Thread(target=self._submit, args=(at, one)) for at, one in enumerate(commands)]
        self.outcomes: list[object] = [None] * len(commands)

    def _submit(self, at: int, command: Command[object]) -> None:
        try:
            self.outcomes[at] = self._client.submit(command)
        except BaseException as error:
            self.outcomes[at] = error

    def come(self) -> None:
        for waiting, thread in enumerate(self._threads):
            thread.start()
            while self._client.waiting <= waiting:  # the threads submit in this order
                time.sleep(0)

    def leave(self) -> list[object]:
        for thread in self._threads:
            thread.join()
        return self.outcomes


def at_first_create(stores: list[HookedStore], then: Callable[[], None]) -> None:
    """Run a function at the first data file that is created."""
    done = False

    def hook(what: str, name: str, call: Callable[[], object]) -> object:
        nonlocal done
        if what == "create" and name.endswith(".parquet") and not done:
            done = True
            then()
        return call()

    for store in stores:
        store.hook = hook


def crowded(quorum: Quorum, commands: list[Command[object]]) -> list[object]:
    """The results of commands that are submitted during the commit of another."""
    through = quorum.hooked()
    client = quorum.client(through=through)
    crowd = Crowd(client, commands)
    at_first_create(through, crowd.come)
    client.submit(AlterConfigs(None, {"segment.bytes": "7"}))
    return crowd.leave()


def batches(quorum: Quorum) -> int:
    return sum(name.endswith(".parquet") for name in quorum.names(1))


def test_commands_that_come_in_during_a_commit_are_one_batch() -> None:
    quorum = Quorum(3)
    answers = crowded(quorum, [RegisterBroker(b, an_id(b), "a", "x") for b in range(1, 9)])
    assert answers == list(range(2, 10)), "each its own offset"
    assert batches(quorum) == 3  # batches of the voters, of the config, and of all registrations
    image = quorum.log().read()
    assert {b: broker.broker_epoch for b, broker in image.brokers.items()} == dict(
        zip(range(1, 9), range(2, 10), strict=True)
    )


def test_each_is_decided_on_what_those_before_it_leave_and_refused_alone() -> None:
    quorum = Quorum()
    outcomes = crowded(
        quorum,
        [
            RegisterBroker(1, an_id(1), "a", "x"),
            CreateTopic(name="t", topic_id=an_id(5)),
            CreateTopic(name="t", topic_id=an_id(6)),
            AlterConfigs("t", {"segment.bytes": "1"}),
            FenceBroker(9),
            DeleteTopic("u"),
        ],
    )
    assert outcomes[0] == 2
    assert isinstance(outcomes[2], TopicAlreadyExistsError)
    assert isinstance(outcomes[4], UnknownBrokerError)
    assert isinstance(outcomes[5], UnknownTopicOrPartitionError)
    image = quorum.log().read()
    assert image.topic("t").topic_id == an_id(5)
    assert batches(quorum) <= 4


def test_a_lost_majority_is_everybodys_error_with_its_own_name() -> None:
    quorum = Quorum(3)
    through = quorum.hooked()
    client = quorum.client(through=through)
    crowd = Crowd(client, [RegisterBroker(2, an_id(2), "a", "x"), AlterConfigs(None, {"segment.ms": "3"})])
    creates = 0

    def gone(what: str, name: str, call: Callable[[], object]) -> object:
        raise StorageError("gone")

    def lost_with_the_second(what: str, name: str, call: Callable[[], object]) -> object:
        nonlocal creates
        result = call()
        if what == "create" and name.endswith(".parquet"):
            creates += 1
            if creates == 1:
                crowd.come()
            else:
                through[1].hook = through[2].hook = gone
        return result

    through[0].hook = lost_with_the_second
    client.submit(RegisterBroker(1, an_id(1), "a", "x"))
    outcomes = crowd.leave()
    assert all(isinstance(one, OutcomeUnknownError | NoMajorityError) for one in outcomes)
    assert "RegisterBroker may have been committed" in str(outcomes[0])
    assert "AlterConfigs may have been committed" in str(outcomes[1])


class Bug:
    """A command that fails because of its own bug."""

    def decide(self, image: ClusterImage) -> Decision[None]:
        raise ZeroDivisionError


def test_a_bug_in_one_command_affects_no_other() -> None:
    quorum = Quorum()
    client = quorum.client()
    with pytest.raises(ZeroDivisionError):
        client.submit(Bug())
    assert client.submit(RegisterBroker(1, an_id(1), "a", "x")) == 1


def test_a_command_whose_record_nobody_could_read_is_refused_alone() -> None:
    """The shared batch is committed without this command, and is read again."""
    quorum = Quorum()
    outcomes = crowded(
        quorum,
        [
            RegisterBroker(1, an_id(1), "a", "x"),
            RegisterBroker(2.0, an_id(2), "a", "x"),  # type: ignore[arg-type]
            RegisterBroker(3, an_id(3), "a", "x"),
        ],
    )
    assert outcomes[0] == 2
    assert isinstance(outcomes[1], InvalidCallError)
    assert "broker_id=2.0" in str(outcomes[1])
    assert outcomes[2] == 3
    assert set(quorum.log().read().brokers) == {1, 3}


@pytest.mark.parametrize("dry_run", [True, False])
def test_such_a_command_is_refused_by_an_idle_driver_and_in_a_dry_run(dry_run: bool) -> None:
    quorum = Quorum()
    before = batches(quorum)
    client = quorum.client()
    with pytest.raises(InvalidCallError, match=r"2\.0"):
        client.submit(RegisterBroker(2.0, an_id(2), "a", "x"), dry_run=dry_run)  # type: ignore[arg-type]
    with pytest.raises(InvalidCallError, match=r"2\.0"):
        client.change_voters(RemoveVoter(2.0, returning=True), dry_run=dry_run)  # type: ignore[arg-type]
    assert batches(quorum) == before
    assert quorum.log().read().brokers == {}


def test_many_threads_of_one_driver_make_few_commits() -> None:
    quorum = Quorum(3)
    client = quorum.client()

    def drive(seed: int) -> None:
        for number in range(5):
            token = 10 * seed + number
            client.submit(RegisterBroker(token, an_id(token + 1), "a", "x"))

    together(*(partial(drive, seed) for seed in range(8)))
    assert len(quorum.log().read().brokers) == 40
    assert batches(quorum) <= 41
