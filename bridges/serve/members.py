"""Members of consumer groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup; Kafka's classic rebalance protocol.

1. consumers join, and a group waits until each known member has joined again, or has timed out
2. the next generation begins: one member, the leader, gets all subscriptions
3. the leader assigns partitions in SyncGroup, and each member gets its partitions
4. heartbeats show that a member is alive, and announce the next rebalance

A group exists in the memory of this endpoint as long as it has members. Members of an ended endpoint are unknown
to the next endpoint, and join again. The cluster stores the group's offsets (``groups``). Endpoints do not share
members.

Everything except ``described`` runs in the event loop, without locks, because nothing changes between two
``await`` expressions.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from stratalog.bridges.serve.codes import ErrorCode
from stratalog.bridges.serve.protocol import Fields, KafkaRequest
from stratalog.engine.state.group_commits import check_group
from stratalog.partitions.errors import InvalidGroupIdError
from stratalog.partitions.identity import NewId

_FIRST_S = 0.5
"""Kafka's group.initial.rebalance.delay.ms (3 s in Kafka): consumers that start together join one generation."""
_LONGEST_S = 1800.0
"""The limit of a session's and a rebalance's timeout: Kafka's group.max.session.timeout.ms."""
_LONGEST_NAME = 255
_MOST_MEMBERS, _MOST_BYTES = 1_000, 4 * 1024 * 1024
"""The limits for all groups together: number of members, and bytes of subscriptions and assignments."""


class RebalanceState(StrEnum):
    """Kafka's states of a group. Groups without members are not kept."""

    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


@dataclass(slots=True, eq=False)
class ServedMember:
    member_id: str
    client_id: str
    session_s: float
    rebalance_s: float
    protocols: dict[str, bytes]
    """The member's assignors, in order of preference, with its subscription for each."""
    assignment: bytes = b""
    joining: asyncio.Future[Fields] | None = None
    """The member's pending JoinGroup; done if its connection has ended meanwhile."""
    syncing: asyncio.Future[Fields] | None = None
    expiry: asyncio.TimerHandle | None = None

    @property
    def size_bytes(self) -> int:
        """The number of bytes that are kept for the member."""
        return len(self.assignment) + sum(len(name) + len(data) for name, data in self.protocols.items())


@dataclass(slots=True, eq=False)
class ServedGroup:
    """A group that has members."""

    name: str
    protocol_type: str
    state: RebalanceState = RebalanceState.STABLE
    generation: int = 0
    protocol: str = ""
    leader: str = ""
    members: dict[str, ServedMember] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None
    """The latest possible end of the rebalance."""

    def common(self, protocols: Iterable[str], but: str = "") -> list[str]:
        """The assignors that all members have, ignoring the member ``but``."""
        others = [one.protocols for key, one in self.members.items() if key != but]
        return [name for name in protocols if all(name in other for other in others)]

    def voted(self) -> str:
        """The assignor that most members prefer, among the assignors that all members have."""
        first = next(iter(self.members.values()))
        common = self.common(first.protocols)
        votes = Counter(next(name for name in one.protocols if name in common) for one in self.members.values())
        return max(common, key=votes.__getitem__)

    def joined(self, member: ServedMember) -> Fields:
        """The response to its JoinGroup, in the current generation."""
        listed = self.members.values() if member.member_id == self.leader else ()
        return {
            **_joined(ErrorCode.NONE, member.member_id),
            "generation_id": self.generation,
            "group_protocol": self.protocol,
            "leader_id": self.leader,
            "members": [
                {"member_id": one.member_id, "member_metadata": one.protocols[self.protocol]} for one in listed
            ],
        }


class GroupMembers:
    def __init__(self, new_id: NewId) -> None:
        self._new_id = new_id
        self._groups: dict[str, ServedGroup] = {}

    # ------------------------------------------------------------------------------- requests

    async def join(self, request: KafkaRequest) -> Fields:
        """JoinGroup, which is answered when the generation begins."""
        body = request.body
        name, member_id = body["group"] or "", body["member_id"] or ""
        session_s = body["session_timeout"] / 1000
        rebalance_s = min(body.get("rebalance_timeout", body["session_timeout"]) / 1000, _LONGEST_S)
        protocols = {
            one["protocol_name"] or "": one["protocol_metadata"] or b"" for one in body["group_protocols"] or ()
        }
        group = self._groups.get(name) or ServedGroup(name, body["protocol_type"] or "")
        member = group.members.get(member_id)
        if error := self._refusal(body, group, member, protocols):
            return _joined(error, member_id)
        if member is None:
            client_id = request.client_id[:_LONGEST_NAME]
            member_id = f"{client_id}-{self._new_id()}"
            member = ServedMember(member_id, client_id, session_s, rebalance_s, protocols)
            group.members[member_id] = member
        elif self._is_answered(group, member, protocols):
            self._lives(group, member)
            return group.joined(member)
        member.session_s, member.rebalance_s, member.protocols = session_s, rebalance_s, protocols
        # a JoinGroup on an earlier connection
        _answer(member.joining, _joined(ErrorCode.UNKNOWN_MEMBER_ID, member_id))
        waiting: asyncio.Future[Fields] = asyncio.get_running_loop().create_future()
        member.joining = waiting
        self._groups[name] = group
        self._rebalance(group)
        return await waiting

    async def sync(self, request: KafkaRequest) -> Fields:
        """SyncGroup, which is answered when the leader has assigned partitions."""
        body = request.body
        group, member, error = self._find(body)
        if group is None or member is None or error:
            return _synced(error)
        self._lives(group, member)
        if group.state is RebalanceState.PREPARING:
            return _synced(ErrorCode.REBALANCE_IN_PROGRESS)
        if group.state is RebalanceState.STABLE:
            return _synced(ErrorCode.NONE, member.assignment)
        if member.member_id == group.leader:
            given = {one["member_id"]: one["member_metadata"] or b"" for one in body["group_assignment"] or ()}
            if not self._has_room(member, member.size_bytes + sum(map(len, given.values()))):
                return _synced(ErrorCode.GROUP_MAX_SIZE_REACHED)
            group.state = RebalanceState.STABLE
            _cancel(group.timer)
            for one in group.members.values():
                one.assignment = given.get(one.member_id, b"")
                _answer(one.syncing, _synced(ErrorCode.NONE, one.assignment))
                one.syncing = None
            return _synced(ErrorCode.NONE, member.assignment)
        _answer(member.syncing, _synced(ErrorCode.UNKNOWN_MEMBER_ID))
        member.syncing = asyncio.get_running_loop().create_future()
        return await member.syncing

    async def heartbeat(self, request: KafkaRequest) -> Fields:
        """Heartbeat."""
        group, member, error = self._find(request.body)
        if group is not None and member is not None and not error:
            self._lives(group, member)
            error = ErrorCode.REBALANCE_IN_PROGRESS if group.state is RebalanceState.PREPARING else ErrorCode.NONE
        return {"throttle_time_ms": 0, "error_code": error}

    async def leave(self, request: KafkaRequest) -> Fields:
        """LeaveGroup: the other members get its partitions immediately."""
        group, member, error = self._find({**request.body, "generation_id": None})
        if group is not None and member is not None:
            self._remove(group, [member])
        return {"throttle_time_ms": 0, "error_code": error}

    def commit_error(self, body: Fields) -> int:
        """The error of an invalid OffsetCommit, if any. In a group with members, only members of the current
        generation may commit. In any other group, only consumers that assign their own partitions may commit.
        """
        generation, member_id = body["consumer_group_generation_id"], body["consumer_id"]
        if generation < 0 and not member_id and body["consumer_group"] not in self._groups:
            return ErrorCode.NONE
        asked = {"group": body["consumer_group"], "member_id": member_id, "generation_id": generation}
        group, member, error = self._find(asked)
        if group is not None and member is not None and not error:
            self._lives(group, member)
            error = ErrorCode.REBALANCE_IN_PROGRESS if group.state is RebalanceState.COMPLETING else ErrorCode.NONE
        return error

    def described(self) -> Mapping[str, Fields]:
        """The descriptions of groups with members, for DescribeGroups. Callable in any thread."""
        return {
            name: {
                "state": str(group.state),
                "protocol_type": group.protocol_type,
                "protocol": group.protocol,
                "members": [
                    {
                        "member_id": one.member_id,
                        "client_id": one.client_id,
                        "client_host": "",
                        "member_metadata": one.protocols.get(group.protocol, b""),
                        "member_assignment": one.assignment,
                    }
                    for one in list(group.members.values())
                ],
            }
            for name, group in list(self._groups.items())
        }

    # ------------------------------------------------------------------------------ rebalances

    def _rebalance(self, group: ServedGroup) -> None:
        """Start a rebalance: all members must join again. A new group waits a moment for more members."""
        if group.state is not RebalanceState.PREPARING:
            group.state = RebalanceState.PREPARING
            for one in group.members.values():
                _answer(one.syncing, _synced(ErrorCode.REBALANCE_IN_PROGRESS))
                one.syncing = None
            longest_s = max(one.rebalance_s for one in group.members.values())
            self._at_latest(group, longest_s if group.generation else _FIRST_S, self._begin)
        if group.generation and all(one.joining for one in group.members.values()):
            self._begin(group)

    def _begin(self, group: ServedGroup) -> None:
        """Start the next generation with the members that have joined."""
        _cancel(group.timer)
        late = [one for one in group.members.values() if one.joining is None]
        self._forget(group, late)
        if not group.members:
            return
        group.generation += 1
        group.state = RebalanceState.COMPLETING
        group.protocol = group.voted()
        if group.leader not in group.members:
            group.leader = next(iter(group.members))
        for one in group.members.values():
            one.assignment = b""
            _answer(one.joining, group.joined(one))
            one.joining = None
            self._lives(group, one)
        longest_s = max(one.rebalance_s for one in group.members.values())
        self._at_latest(group, longest_s, self._without_sync)

    def _without_sync(self, group: ServedGroup) -> None:
        """Remove a leader that is alive but assigns nothing, because all other members wait for the leader."""
        self._remove(group, [one for one in group.members.values() if one.syncing is None])

    def _at_latest(self, group: ServedGroup, delay_s: float, act: Callable[[ServedGroup], None]) -> None:
        _cancel(group.timer)
        group.timer = asyncio.get_running_loop().call_later(delay_s, act, group)

    # -------------------------------------------------------------------------------- members

    def _find(self, body: Fields) -> tuple[ServedGroup | None, ServedMember | None, int]:
        """The group and the member, and the error if the member is not of the current generation."""
        group = self._groups.get(body["group"] or "")
        member = None if group is None else group.members.get(body["member_id"] or "")
        if group is None or member is None:
            return None, None, ErrorCode.UNKNOWN_MEMBER_ID
        present = body["generation_id"] in (group.generation, None)
        return group, member, ErrorCode.NONE if present else ErrorCode.ILLEGAL_GENERATION

    def _refusal(
        self, body: Fields, group: ServedGroup, member: ServedMember | None, protocols: Mapping[str, bytes]
    ) -> int:
        """The error of a JoinGroup."""
        try:
            check_group(body["group"] or "")
        except InvalidGroupIdError:
            return ErrorCode.INVALID_GROUP_ID
        if not 0 < body["session_timeout"] / 1000 <= _LONGEST_S:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if body["member_id"] and member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        kind = body["protocol_type"]
        if not kind or group.protocol_type != kind or not group.common(protocols, body["member_id"]):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        size_bytes = len(group.protocol_type) + sum(len(one) + len(data) for one, data in protocols.items())
        return ErrorCode.NONE if self._has_room(member, size_bytes) else ErrorCode.GROUP_MAX_SIZE_REACHED

    @staticmethod
    def _is_answered(group: ServedGroup, member: ServedMember, protocols: Mapping[str, bytes]) -> bool:
        """Whether a member that joins again without changes gets the current generation, as in Kafka. Only a
        leader that has already assigned partitions requests a new generation, for example after a change of
        topics.
        """
        unchanged = list(member.protocols.items()) == list(protocols.items())
        match group.state:
            case RebalanceState.PREPARING:
                return False
            case RebalanceState.COMPLETING:
                return unchanged
            case RebalanceState.STABLE:
                return unchanged and member.member_id != group.leader

    def _has_room(self, member: ServedMember | None, size_bytes: int) -> bool:
        """Check the limits for a member of that size, which replaces an earlier entry of the same member."""
        others = [one for group in self._groups.values() for one in group.members.values() if one is not member]
        return len(others) < _MOST_MEMBERS and sum(one.size_bytes for one in others) + size_bytes <= _MOST_BYTES

    def _lives(self, group: ServedGroup, member: ServedMember) -> None:
        """Restart the member's session timeout."""
        _cancel(member.expiry)
        member.expiry = asyncio.get_running_loop().call_later(member.session_s, self._expired, group, member)

    def _expired(self, group: ServedGroup, member: ServedMember) -> None:
        if member.joining is not None or member.syncing is not None:  # the member waits for a response
            self._lives(group, member)
        else:
            self._remove(group, [member])

    def _remove(self, group: ServedGroup, gone: Iterable[ServedMember]) -> None:
        """Remove members; the others get their partitions."""
        self._forget(group, gone)
        if group.members:
            self._rebalance(group)

    def _forget(self, group: ServedGroup, gone: Iterable[ServedMember]) -> None:
        for one in gone:
            del group.members[one.member_id]
            _cancel(one.expiry)
            _answer(one.joining, _joined(ErrorCode.UNKNOWN_MEMBER_ID, one.member_id))
            _answer(one.syncing, _synced(ErrorCode.UNKNOWN_MEMBER_ID))
        if not group.members:
            _cancel(group.timer)
            self._groups.pop(group.name, None)


def _joined(error: int, member_id: str) -> Fields:
    empty = {"generation_id": -1, "group_protocol": "", "leader_id": "", "members": []}
    return {"throttle_time_ms": 0, "error_code": error, "member_id": member_id, **empty}


def _synced(error: int, assignment: bytes = b"") -> Fields:
    return {"throttle_time_ms": 0, "error_code": error, "member_assignment": assignment}


def _answer(waiting: asyncio.Future[Fields] | None, fields: Fields) -> None:
    """Set the result of a pending request. A future that is already done means that the connection has ended."""
    if waiting is not None and not waiting.done():
        waiting.set_result(fields)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
