"""Send a log to a Kafka topic, keyed by session, so that a session's samples lie together and compress together.

The partitioner is `murmur2_random`, which Java producers agree with: mixed producers do not split a session. The
producer is idempotent and waits for all replicas; order within a session is kept. Sending a log twice repeats its
messages (remove repeats by event ID when the table is built).
"""

import json
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from recoup.core import ConfigError, Progress, no_progress
from recoup.log.errors import LogError
from recoup.log.kafka.messages import encode_samples
from recoup.log.kafka.topic import KafkaTopic, kafka_library
from recoup.log.open import LogConfig
from recoup.log.source import LogSource

_STATISTICS_MS = 200  # how often the client reports what it has sent
_FLUSH_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ProduceConfig:
    """How to send; the defaults trade a little delay for large, well-compressed batches."""

    topic: KafkaTopic
    key: Literal["session", "random"] = "session"
    """What places a message: its session, or chance (only to measure what the session key is worth)."""
    compression: Literal["zstd", "lz4", "snappy", "gzip", "none"] = "zstd"
    linger: timedelta = timedelta(milliseconds=200)
    """How long a batch waits to fill."""
    batch_bytes: int = 1 << 20
    """Largest batch before compression."""

    def __post_init__(self) -> None:
        """Check ranges."""
        if self.batch_bytes < 1 << 10 or self.linger < timedelta(0):
            raise ConfigError(f"expected batch_bytes >= 1024 and linger >= 0, got {self.batch_bytes} and {self.linger}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProduceRun:
    """What the TOML file of `recoup log produce` holds."""

    log: LogConfig
    produce: ProduceConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Produced:
    """What was sent."""

    num_samples: int
    num_bytes: int
    """Keys and values as given."""
    sent_bytes: int
    """Bytes on the wire: after compression, protocol included."""


def produce(source: LogSource, config: ProduceConfig, progress: Progress = no_progress) -> Produced:
    """Send every sample of `source` and wait until all are acknowledged.

    Raises:
        LogError: a message was not acknowledged, or no broker answered.
    """
    batches = source.batches(progress=progress, batch_samples=1024)
    return send_messages((pair for batch in batches for pair in encode_samples(batch, source.schema)), config)


def send_messages(messages: Iterable[tuple[bytes, bytes]], config: ProduceConfig) -> Produced:
    """Send (key, value) pairs and wait until all are acknowledged (see `produce`)."""
    sender = _Sender(config)
    num_samples = num_bytes = 0
    for key, value in messages:
        sender.send(key, value)
        num_samples += 1
        num_bytes += len(key) + len(value)
    sender.finish()
    return Produced(num_samples=num_samples, num_bytes=num_bytes, sent_bytes=sender.sent_bytes)


class _Sender:
    """The client with its call-backs: the first failed delivery, and the bytes sent so far."""

    def __init__(self, config: ProduceConfig) -> None:
        self.sent_bytes = 0
        self._statistics = 0
        self._failure = ""
        self._topic = config.topic.topic
        self._random = random.Random(0) if config.key == "random" else None
        self._library = kafka_library()
        self._client = self._library.Producer(
            config.topic.client(
                {
                    "partitioner": "murmur2_random",
                    "enable.idempotence": True,
                    "acks": "all",
                    "compression.type": config.compression,
                    "linger.ms": config.linger / timedelta(milliseconds=1),
                    "batch.size": config.batch_bytes,
                    "batch.num.messages": 1_000_000,
                    "statistics.interval.ms": _STATISTICS_MS,
                    "stats_cb": self._on_statistics,
                }
            )
        )

    def send(self, key: bytes, value: bytes) -> None:
        if self._random is not None:
            key = str(self._random.getrandbits(62)).encode()
        while True:
            try:
                self._client.produce(self._topic, key=key, value=value, on_delivery=self._on_delivery)
                break
            except BufferError:
                self._client.poll(0.1)
        self._client.poll(0)
        self._check()

    def finish(self) -> None:
        waiting = self._client.flush(_FLUSH_SECONDS)
        self._check()
        if waiting:
            raise LogError(f"expected every message acknowledged, got {waiting} waiting (topic '{self._topic}')")
        wanted = self._statistics + 2
        until = time.monotonic() + 10 * _STATISTICS_MS / 1000
        while self._statistics < wanted and time.monotonic() < until:
            self._client.poll(_STATISTICS_MS / 1000)

    def _check(self) -> None:
        if self._failure:
            raise LogError(f"expected every message acknowledged, got: {self._failure} (topic '{self._topic}')")

    def _on_delivery(self, error: Any, message: Any) -> None:  # noqa: ANN401
        del message
        if error is not None and not self._failure:
            self._failure = error.str()

    def _on_statistics(self, text: str) -> None:
        self._statistics += 1
        self.sent_bytes = sum(broker.get("txbytes", 0) for broker in json.loads(text)["brokers"].values())
