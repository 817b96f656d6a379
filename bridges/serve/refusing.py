"""Refusals with texts that clients show, for producers and for the protocol of KIP-848. For a producer, a line of
the logger ``stratalog.serve`` says where to produce instead.
"""

from __future__ import annotations

import logging
import threading

from stratalog.bridges.serve.codes import ErrorCode
from stratalog.bridges.serve.protocol import Fields, KafkaRequest, MalformedRequestError, partitions_of, topics_of
from stratalog.partitions.clock import Clock
from stratalog.partitions.printable import printable

_EVERY_S = 60.0
_MOST_CLIENTS = 100
"""The limit of clients to log per minute, because client ids are arbitrary."""
_LONGEST = 255
"""The length of a client's text in the log."""
_NO_OFFSET = -1
_MESSAGE = "stratalog serve is read only"

_log = logging.getLogger("stratalog.serve")


class ServedProducers:
    """Refuses producers. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._logged_s: dict[tuple[str, str], float] = {}
        """The time of the last line, by host and client id."""

    def produce(self, request: KafkaRequest) -> Fields:
        """Produce: TOPIC_AUTHORIZATION_FAILED, with a message if the version has one. Raises:
        MalformedRequestError for a producer with acks=0, which gets no responses.
        """
        wanted = partitions_of(request.body)
        self._log_refusal(request, f"produces to {', '.join(sorted({topic or '' for topic, _ in wanted})[:3])}")
        if request.body["required_acks"] == 0:
            raise MalformedRequestError("a producer with acks=0, which gets no answers")
        error = {
            "error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            "offset": _NO_OFFSET,
            "timestamp": _NO_OFFSET,
            "log_start_offset": _NO_OFFSET,
            "record_errors": [],
            "error_message": _MESSAGE,
        }
        return {"throttle_time_ms": 0, "topics": topics_of(dict.fromkeys(wanted, error))}

    def init(self, request: KafkaRequest) -> Fields:
        """InitProducerId, with which idempotent and transactional producers begin."""
        self._log_refusal(request, "starts to produce")
        transactional = request.body["transactional_id"] is not None
        error = (
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            if transactional
            else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        )
        return {"throttle_time_ms": 0, "error_code": error, "producer_id": -1, "producer_epoch": -1}

    def _log_refusal(self, request: KafkaRequest, does: str) -> None:
        """Write a line to the log, once a minute for each client."""
        now_s, client = self._clock.monotonic_s(), (request.host, request.client_id[:_LONGEST])
        with self._lock:
            self._logged_s = {one: at_s for one, at_s in self._logged_s.items() if now_s - at_s < _EVERY_S}
            if client in self._logged_s or len(self._logged_s) >= _MOST_CLIENTS:
                return
            self._logged_s[client] = now_s
        _log.warning(
            "refused: client %s at %s %s. This endpoint is read-only: produce to a Kafka cluster "
            "that `stratalog mirror` copies here, or append with `stratalog produce` or cluster.append",
            printable(repr(client[1])),
            printable(request.host),
            printable(does[:_LONGEST]),
        )


def refused_heartbeat() -> Fields:
    """ConsumerGroupHeartbeat (KIP-848): UNSUPPORTED_VERSION, as from a broker on which the protocol is switched
    off. Clients then fail with an error; if the request were not listed, librdkafka would wait without an error.
    """
    return {
        "throttle_time_ms": 0,
        "error_code": ErrorCode.UNSUPPORTED_VERSION,
        "error_message": "stratalog serve does not support group.protocol=consumer: set group.protocol=classic",
        "member_id": None,
        "member_epoch": 0,
        "heartbeat_interval_ms": 0,
        "assignment": -1,
    }
