"""The end: nothing fails any more, and a lone driver repairs everything (I7)."""

from __future__ import annotations

from stratalog.engine.brokers import bring_up
from stratalog.engine.brokers.fence import unfence
from stratalog.engine.brokers.probe import probe_brokers
from stratalog.engine.driver.report import Report
from stratalog.engine.records.transactions import finish_transactions
from stratalog.engine.state.internal_topics import TRANSACTIONS_TOPIC
from stratalog.engine.upkeep.erasing.erase import erase
from stratalog.engine.upkeep.erasing.plan import WantedRecords
from stratalog.engine.upkeep.healing.heal import heal
from stratalog.engine.upkeep.healing.keep import keep_one
from stratalog.engine.upkeep.replication.compact import compact
from stratalog.engine.upkeep.replication.elect import elect
from stratalog.engine.upkeep.replication.replicate import replicate
from stratalog.engine.upkeep.retention.retain import retain
from stratalog.engine.upkeep.retention.sweep import CLOSED
from stratalog.engine.upkeep.retention.vacuum import vacuum
from stratalog.engine.upkeep.snapshots.snapshot import snapshot
from stratalog.engine.upkeep.tiering.tier import tier
from stratalog.engine.upkeep.verification.verify import verify
from stratalog.partitions import paths
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.paths import BROKER_FILE, DataName
from tests.ports import with_ports
from tests.simulation import reading
from tests.simulation.actions import named_by
from tests.simulation.actor import Actor, check_report
from tests.simulation.appending import append_try
from tests.simulation.content import content_of
from tests.simulation.erasing import check_erased, check_remote, erase_key
from tests.simulation.mirroring import check_mirrored
from tests.simulation.oracle import Key
from tests.simulation.scheduler import Driver, Violation
from tests.simulation.sweeping import check_sweep
from tests.simulation.themes import ERASING
from tests.simulation.world import TOPIC, World

_LONG_MS = 8 * 86_400_000
"""Longer than every wait: segment.ms, the age that a vacuum spares, file.delete.delay.ms."""
_TRIES = 4


class LoneDriver:
    """An operator alone with the cluster."""

    def __init__(self, world: World) -> None:
        self._world = world

    def main(self, driver: Driver) -> None:
        """Repair everything. Raises: Violation if that fails."""
        world = self._world
        actor = Actor(world, driver, world.ports(driver))
        driver.quiet = 1  # there is no other driver to interleave with
        if world.abandoned:
            return
        try:
            self._recover(actor)
        except StratalogError as error:
            raise Violation(f"I7: recovery fails: {error.code}: {error}") from error

    def _recover(self, actor: Actor) -> None:
        world, ports = self._world, actor.ports
        wiped = [broker for broker, root in world.roots.items() if root.get(BROKER_FILE) is None]
        bring_up.format_roots(ports.storage.file, ports.storage.stores, wiped, ports.storage.new_id)
        probe_brokers(ports.metadata, ports.storage)
        _must(bring_up.register_brokers(ports.metadata, ports.storage, ports.execution))
        held = [broker.broker_id for broker in ports.metadata.image().brokers.values() if broker.fenced_by_hand]
        if held:
            _must(unfence(ports.metadata, ports.storage, ports.execution, held))
        _must(elect(ports.metadata, ports.storage, ports.execution, unclean=True))
        if any(history.begins_again is not None for history in world.oracle.histories.values()):
            _must(keep_one(ports.metadata, ports.storage, ports.execution, ports.memory, None, "brokers"))
        self._delete_later_descriptions()
        if world.damage.partitions:
            self._heal(actor)
            if world.abandoned:
                return
        else:
            check_sweep(actor)
        if any(history.was_put_back for history in world.oracle.histories.values()):
            for _ in range(_TRIES):
                replicate(ports.metadata, ports.storage, ports.execution, ports.memory)
                heal(ports.metadata, ports.storage, ports.execution, ports.memory)
        self._settle(actor)
        for key, producer in list(world.ledger.appends):
            for sequence, acknowledged in list(world.ledger.appends[key, producer].items()):
                if not acknowledged:
                    self._retry(actor, key, producer, sequence)
        for partition in range(world.shape.partitions):
            lone = f"lone{partition}"  # a sequence is that of a whole append
            world.ledger.appends[(world.topic_id, partition), lone] = {0: False}
            world.ledger.sizes[(world.topic_id, partition), lone, 0] = 1
            self._retry(actor, (world.topic_id, partition), lone, 0)
        if TRANSACTIONS_TOPIC in ports.metadata.image().topic_ids:
            world.time.ms += _LONG_MS  # every transaction that is open has run into its timeout
            _must(finish_transactions(ports.metadata, ports.storage, ports.execution, ports.memory))
        check_report(actor, compact(ports.metadata, ports.storage, ports.execution))
        if world.published is not None:
            world.published.remove_unlisted()
            for _ in range(2):
                check_report(
                    actor, snapshot(ports.metadata, ports.storage, ports.execution, ports.memory, by_hand=True)
                )
        for _ in range(2):  # the leaders' segments reach the followers, where they hide appends in turn
            self._settle(actor)
            world.time.ms += _LONG_MS
            for operation in (tier, retain, vacuum):
                check_report(actor, _must(with_ports(operation, ports)()))
        world.time.ms += _LONG_MS
        for operation in (retain, vacuum):  # deletes the files that the last retain released
            check_report(actor, _must(with_ports(operation, ports)()))
        if ERASING & world.configuration.tags:
            self._erase_the_rest(actor)
            for _ in range(2):  # segments that waited for the erasure are tiered, and their local copies deleted
                world.time.ms += _LONG_MS
                for operation in (tier, retain, vacuum):
                    check_report(actor, _must(with_ports(operation, ports)()))
        check_report(actor, _must(verify(ports.metadata, ports.storage, ports.execution, deep=True)))
        reading.read_topic(world, ports)

    def _erase_the_rest(self, actor: Actor) -> None:
        """Run a last erasure that deletes the rest; then no file has a record that an erasure named (E2)."""
        world, ports = self._world, actor.ports
        for root in (*world.roots.values(), world.remote):
            root.staged.clear()  # a vacuum deletes the files of dead writers after a day
        for key in sorted(world.oracle.keys_wanted) if world.published is not None else ():
            erase_key(actor, int(key[1:]), "now")
        report = erase(ports.metadata, ports.storage, ports.execution, [TOPIC], WantedRecords(None), now=True)
        check_report(actor, report)
        if not report.whole:
            raise Violation(f"E2: no erasure is whole at the end: {report.failures} {report.notes}")
        for partition in range(world.shape.partitions):
            key = world.topic_id, partition
            history = world.oracle.history(key)
            for broker, root in world.roots.items():
                if (key, broker) not in world.invariants.folders:
                    continue
                folder = world.invariants.folder(broker, key)
                check_erased(history, history.erased, root, folder, "E2")
            check_remote(
                world.remote, paths.topic_folder(TOPIC, world.topic_id), partition, history, history.erased
            )

    def _delete_later_descriptions(self) -> None:
        """Delete the descriptions that the error names: the metadata were restored from a copy, and a restore
        would use these."""
        world = self._world
        for folder in [name for name in world.remote.folders if name.startswith(paths.DESCRIPTIONS)]:
            for name in list(world.remote.folders[folder]):
                if int(paths.base_name(name).partition(".")[0]) > world.oracle.image.next_offset:
                    world.remote.delete(name)

    def _heal(self, actor: Actor) -> None:
        """Check that all damage is named, and repaired, because there is a good copy of everything."""
        for _ in range(_TRIES):
            replicate(actor.ports.metadata, actor.ports.storage, actor.ports.execution, actor.ports.memory)
            heal(actor.ports.metadata, actor.ports.storage, actor.ports.execution, actor.ports.memory)
            if not any(self._world.copies.damaged()):
                break
            if self._world.compacted:  # as the error says: a replica is a source once it follows the rule
                compact(actor.ports.metadata, actor.ports.storage, actor.ports.execution)
        copies = self._world.copies
        damaged = list(copies.damaged())
        if damaged:
            named_by(
                actor, verify(actor.ports.metadata, actor.ports.storage, actor.ports.execution, deep=True), damaged
            )
        excused = {*copies.without_register()} | {each[0] for each in damaged if copies.is_nobodys_loss(each)}
        for key, broker, name in damaged:
            if key not in excused:
                raise Violation(
                    f"I8: {name} of {self._world.invariants.name(key)} on {broker} is not repaired, though there "
                    f"are good copies: {with_ports(heal, actor.ports)()}"
                )
        for key in sorted(excused):
            self._world.abandon(key)

    def _settle(self, actor: Actor) -> None:
        """Replicate until nothing changes; a few runs must suffice."""
        for _ in range(_TRIES):
            report = replicate(
                actor.ports.metadata, actor.ports.storage, actor.ports.execution, actor.ports.memory
            )
            check_report(actor, report)
            if report.ok and not any(row["copied_files"] for row in report.rows):
                return
        raise Violation(f"I7: replicate does not come to rest: {report}")

    def _retry(self, actor: Actor, key: Key, producer: str, sequence: int) -> None:
        records = self._world.ledger.sizes[key, producer, sequence]
        for _ in range(_TRIES):
            outcome = append_try(actor, producer, sequence, key[1], records)
            if outcome in ("acknowledged", "duplicate", "superseded"):
                return
        raise Violation(f"I7: {producer} {sequence} of {key[1]} cannot be appended: {outcome}")

    # --------------------------------------------------------------------------------- afterwards

    def check(self) -> None:
        """Check that all replicas agree, all are in the ISR, and every record is accounted for. Raises:
        Violation."""
        world = self._world
        if world.abandoned:
            return
        for topic_id, topic in world.oracle.image.topics.items():
            for partition in topic.partitions:
                self._check_partition((topic_id, partition.partition))
        world.ledger.check_accounts()
        check_mirrored(world.oracle)
        self._check_litter()

    def _check_litter(self) -> None:
        owned = world_folders(self._world)
        for broker, root in self._world.roots.items():
            for folder, entries in root.folders.items():
                left = entries.keys() - {
                    paths.join(folder, str(CLOSED)),
                    str(CLOSED),
                }  # a swept folder stays closed
                if left and (broker, folder) not in owned:
                    raise Violation(f"I7: {folder} on broker {broker} belongs to no replica, and is left behind")
        self._check_remote()
        if self._world.published is not None:
            self._world.published.check_end()

    def _check_remote(self) -> None:
        """Check that the remote tier holds exactly the files that its tables list."""
        lying = {
            name
            for folder, entries in self._world.remote.folders.items()
            if not folder.startswith((paths.DESCRIPTIONS, paths.SNAPSHOT_TABLES))  # those of clusters, and others
            for name in entries
        }
        listed = {
            paths.join(paths.topic_folder(topic.name, topic_id), path): (topic_id, upload.segment)
            for topic_id, topic in self._world.oracle.image.topics.items()
            for path, upload in self._world.tables[topic_id].live.items()
        }
        if missing := sorted(listed.keys() - lying):
            raise Violation(f"I7: the remote table lists {missing}, which is not there")
        if left := sorted(lying - listed.keys()):
            raise Violation(f"I7: left behind in the remote tier: {left}")
        for name, (topic_id, segment) in listed.items():
            if not self._world.oracle.history((topic_id, segment.partition)).unclean:
                found = self._world.remote.get(name)
                assert found is not None
                self._world.transactions.check_settled(
                    content_of(self._world.damage.intended(found[1])), segment.path
                )

    def _check_partition(self, key: Key) -> None:
        invariants = self._world.invariants
        partition, name = invariants.partition(key), invariants.name(key)
        assert partition is not None
        if set(partition.isr) != set(partition.replicas) or partition.adding:
            raise Violation(f"I7: the ISR of {name} is {partition.isr} of {partition.replicas} in the end")
        states = {
            broker: invariants.state(broker, invariants.folder(broker, key)) for broker in partition.replicas
        }
        ends = {broker: state.log.log_end for broker, state in states.items()}
        marks = {broker: state.log.high_watermark for broker, state in states.items()}
        if len(set(ends.values())) > 1 or set(marks.values()) != set(ends.values()):
            raise Violation(f"I2: log ends {ends}, high watermarks {marks} of {name} in the end")
        start = max(state.log.local_start for state in states.values())
        logs = {state.tokens[start - state.log.local_start :] for state in states.values()}
        if len(logs) > 1:
            raise Violation(f"I2: the replicas of {name} differ in the end: {states}")
        sizes: dict[DataName, int] = {}
        if not self._world.oracle.history(key).unclean:
            for broker, state in states.items():
                who = f"on broker {broker} ({name})"
                self._world.transactions.check_end(key, state.log, state.contents, who)
        for broker, state in states.items():
            for link in state.log.chain:
                size = link.file.object.size_bytes
                if sizes.setdefault(link.name, size) != size:
                    raise Violation(f"I2: {link.name} has two sizes, one on broker {broker}")
            mark = state.log.high_watermark
            dead = [file for file in state.log.dead if file.name.base_offset < mark]  # above, it may live again
            left = (*dead, *state.log.hidden, *state.log.stranded)
            if left:
                raise Violation(f"I7: left behind on broker {broker} of {name}: {[str(f.name) for f in left]}")


def world_folders(world: World) -> set[tuple[int, str]]:
    """The folders that belong to replicas and voters."""
    owned = {(broker, "") for broker in world.roots}
    owned |= {(broker, paths.voter_path(directory_id)) for broker, directory_id in world.voters.items()}
    owned |= {
        (b.broker_id, paths.schedule_folder(b.incarnation_folder, of))
        for b in world.oracle.image.brokers.values()
        for of in paths.SCHEDULES
    }
    for topic_id, topic in world.oracle.image.topics.items():
        for partition in topic.partitions:
            key = topic_id, partition.partition
            owned |= {(broker, world.invariants.folder(broker, key)) for broker in partition.replicas}
    return owned


def _must(report: Report) -> Report:
    if not report.ok:
        raise Violation(f"I7: recovery fails: {report}")
    return report
