"""The operations of processes, one line in ``ACTIONS`` for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stratalog.engine.metadata.commands import Decision, RegisterBroker
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.metadata.records import VoterId
from stratalog.engine.metadata.voter_commands import AddVoter, RemoveVoter
from stratalog.engine.quorum.inspection import inspect
from stratalog.engine.quorum.upkeep import keep_up
from stratalog.partitions.errors import (
    CorruptionError,
    InvalidCallError,
    NoMajorityError,
    OutcomeUnknownError,
    RetriableError,
    StaleMetadataError,
    StratalogError,
)
from tests.quorum.world import Process
from tests.simulation.configuration import Operation
from tests.simulation.scheduler import Driver, Violation

FIRST_TOKEN = 100_000
"""The first token. Tokens are ids of brokers that are registered once; several processes compete for the smaller
ids.
"""

_TAKEN = 100
_NEEDS_MAJORITY = frozenset({"commit", "take", "together", "read", "snapshot"})


@dataclass(slots=True)
class Actor:
    """The acting thread of a process."""

    driver: Driver
    process: Process


Act = Callable[..., str]
"""Performs the operation with an actor and its arguments, and returns the outcome."""


class TakenError(InvalidCallError):
    """Another driver has registered it."""


@dataclass(frozen=True, slots=True)
class Take:
    """A registration that succeeds only for the first driver."""

    token: int
    directory_id: str

    def decide(self, image: ClusterImage) -> Decision[int]:
        """Raises: TakenError."""
        if self.token in image.brokers:
            raise TakenError(str(self.token))
        return registration(self.token, self.directory_id).decide(image)


def registration(broker: int, directory_id: str) -> RegisterBroker:
    """The command that ``bring_up.register_brokers`` submits."""
    return RegisterBroker(broker, directory_id, None, "x")


def perform(actor: Actor, operation: Operation) -> str:
    """Perform one operation and return its outcome. Raises: Violation, also for errors that no fault explains."""
    world = actor.process.world
    began = world.scheduler.step
    try:
        outcome = ACTIONS[operation.action](actor, *operation.arguments)
    except CorruptionError as error:
        if world.may_lack_what_is_damaged(began):
            world.counts["damage met"] += 1
            return f"{type(error).__name__}: {error}"
        raise Violation(f"I6: {operation}: {error.code}: {error}") from error
    except (RetriableError, OutcomeUnknownError, StaleMetadataError) as error:
        if operation.action == "read" and world.majority_was_there < began - 1:
            world.counts["reads without a majority"] += 1
            if not isinstance(error, NoMajorityError):
                raise Violation(f"a read without a majority fails with {error!r}") from error
        return f"{type(error).__name__}: {error}"
    if world.majority_was_there < began - 1 and operation.action in _NEEDS_MAJORITY:
        raise Violation(f"I6: {operation} went well, and no majority could be reached")
    world.counts[operation.action] += 1
    return outcome


def new_token(actor: Actor) -> int:
    return FIRST_TOKEN + actor.process.world.new_number()


def commit(actor: Actor) -> str:
    """Submit a command once."""
    return submit(actor, new_token(actor))


def submit(actor: Actor, token: int) -> str:
    history = actor.process.world.history
    try:
        offset = actor.process.client.submit(registration(token, f"{token:032x}"))
    except (OutcomeUnknownError, CorruptionError):
        history.counts["outcomes unknown"] += 1
        raise
    except StratalogError as error:
        history.deny(token, repr(error))
        raise
    history.acknowledge(token, offset)
    return f"{token} at {offset}"


def take(actor: Actor, number: int) -> str:
    """Submit a command that succeeds only for the first driver."""
    world, token = actor.process.world, _TAKEN + number
    try:
        offset = actor.process.client.submit(Take(token, f"{0xC0000000 + world.new_number():032x}"))
    except TakenError:
        world.history.refused.add(token)
        world.counts["commands refused"] += 1
        return "taken"
    world.history.acknowledge(token, offset)
    return f"{token} at {offset}"


def together(actor: Actor, threads: int) -> str:
    """Submit commands of several threads of one process at once."""
    world, process = actor.process.world, actor.process
    open_ones = set(range(threads - 1))
    tokens = [new_token(actor) for _ in range(threads)]

    def another(index: int) -> Callable[[Driver], None]:
        def main(driver: Driver) -> None:
            world.enter(driver, process)
            driver.operation = f"thread of {actor.driver.name}"
            try:
                submit(Actor(driver, process), tokens[index])
            except CorruptionError as error:
                if not world.may_lack_what_is_damaged(0):
                    raise Violation(f"I6: {error}") from error
            except StratalogError:
                pass
            finally:
                open_ones.discard(index)

        return main

    for index in sorted(open_ones):
        world.scheduler.spawn(f"{actor.driver.name}/{world.new_number()}", -1, another(index))
    try:
        return submit(actor, tokens[-1])
    finally:
        if not actor.driver.dead:
            world.wait(lambda: bool(open_ones))


def read(actor: Actor) -> str:
    """Make a linearizable read; the log compares it with the twin."""
    return f"up to {actor.process.client.image().next_offset}"


def snapshot(actor: Actor) -> str:
    """Take a snapshot, move the log start, and delete."""
    process, lag_ms = actor.process, actor.process.world.configuration.lag_ms
    done = process.client.with_log(lambda log: keep_up(log, process.clock, lag_ms=lag_ms))
    return f"{done.snapshot}, log start {done.log_start}"


def describe(actor: Actor) -> str:
    """Inspect the voters as an operator does."""
    return f"up to {actor.process.client.with_log(inspect).end}"


def open_again(actor: Actor, cache: int) -> str:
    """Start a new process on the same machine, with the cached state of this process or of any other."""
    remembered = actor.process.world.remembered
    actor.process.open(remembered[-1 - cache % len(remembered)])
    return "opened"


def change(actor: Actor, broker: int) -> str:
    """Add or remove one voter."""
    world = actor.process.world
    voters = {voter.broker_id: voter for voter in world.history.image.voters}
    what = "remove" if broker in voters else "add"
    if not world.events.may_change(what, broker) or not world.directory_of(broker):
        return "not allowed now"
    world.events.changing.append((what, broker))
    try:
        if what == "remove":
            actor.process.client.submit(registration(broker, voters[broker].directory_id))
            actor.process.client.change_voters(RemoveVoter(broker))
        else:
            there = VoterId(broker, world.directory_of(broker))
            actor.process.client.submit(registration(broker, there.directory_id))
            actor.process.client.change_voters(AddVoter(there))
    except InvalidCallError as error:  # other processes change voters, too
        return f"refused: {error}"
    finally:
        world.events.changing.remove((what, broker))
    world.counts["changes of voters"] += 1
    return what


def enrol(actor: Actor, broker: int) -> str:
    """Register a broker with its present root."""
    there = actor.process.world.directory_of(broker)
    return str(actor.process.client.submit(registration(broker, there)))


def alter(actor: Actor, broker: int) -> str:
    """Change the voters like ``change``, by a registered broker."""
    world, client = actor.process.world, actor.process.client
    if any(voter.broker_id == broker for voter in world.history.image.voters):
        return str(client.change_voters(RemoveVoter(broker)))
    return str(client.change_voters(AddVoter(VoterId(broker, world.directory_of(broker)))))


def replace(actor: Actor) -> str:
    """Replace lost or damaged voters; replaced voters return."""
    world, client = actor.process.world, actor.process.client
    image = world.history.image
    unsound = [
        voter.broker_id
        for voter in image.voters
        if not world.events.is_sound(voter) and voter.broker_id not in world.events.gone
    ]
    done = []
    for broker in (*unsound, *image.replaced):
        if not world.events.may_change("add", broker) and broker in image.replaced:
            continue
        done.append(str(broker))
        if world.directory_of(broker) in world.events.lost:
            if not world.events.may_lose(broker):
                continue
            world.events.replace_disk(broker)
        world.events.format(broker)
        there = VoterId(broker, world.directory_of(broker))
        world.events.changing.append(("replace", broker))
        try:
            client.submit(registration(broker, there.directory_id))
            client.change_voters(RemoveVoter(broker, returning=True))
            client.change_voters(AddVoter(there))
        except InvalidCallError as error:
            return f"refused: {error}"
        except CorruptionError as error:
            if not world.events.damaged:
                raise
            return f"a snapshot has to be taken first: {error}"  # the latest snapshot is damaged on every voter
        finally:
            world.events.changing.remove(("replace", broker))
        world.counts["voters replaced"] += 1
    return ", ".join(done) or "nothing to replace"


ACTIONS: dict[str, Act] = {
    "commit": commit,
    "take": take,
    "together": together,
    "read": read,
    "snapshot": snapshot,
    "describe": describe,
    "open": open_again,
    "change": change,
    "enrol": enrol,
    "alter": alter,
    "replace": replace,
}
