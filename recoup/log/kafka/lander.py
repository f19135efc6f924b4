"""Land a topic as Parquet segments, exactly once: the offsets are kept in the segment manifests and nowhere else.

A lander owns the partitions p with p % num_instances == instance. It starts each where the committed manifests end,
buffers checked samples, writes them by hour and session shard, and commits by the manifest (recoup/log/landing.py).
Killed at any moment it leaves uncommitted files, which its next start removes; re-delivery cannot double a message,
because the next segment starts exactly where the last one ended. Messages that break the schema go to a dead-letter
file and count in the manifest. Memory: about `segment_samples` samples.
"""

import fcntl
import logging
import os
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recoup.core import ConfigError, Progress, no_progress, sync_folder
from recoup.log.errors import LogError
from recoup.log.kafka.messages import DeadLetter, Message, decode_messages
from recoup.log.kafka.partition import murmur2_partitions
from recoup.log.kafka.topic import KafkaTopic, kafka_library
from recoup.log.landing import (
    LandedFile,
    Segment,
    commit_segment,
    create_landing,
    file_crc32,
    next_offsets,
    read_segments,
    remove_orphans,
)
from recoup.schema import Schema

_logger = logging.getLogger(__name__)

_HOPELESS = ("UNKNOWN_TOPIC_OR_PART", "TOPIC_AUTHORIZATION_FAILED", "SASL_AUTHENTICATION_FAILED", "_AUTHENTICATION")
"""Errors that waiting does not mend; the others (a broker away for a while) are logged and waited out."""
_HOUR_MS = 3_600_000
_CONSUME_MESSAGES = 2000
_CONSUME_SECONDS = 0.2
_TIMEOUT_SECONDS = 15.0
_IDLE_SECONDS = 60.0  # with `until_end`: how long the brokers may say nothing before the end is reached
_REFRESH_SECONDS = 30.0  # how often partitions added to the topic are looked for


@dataclass(frozen=True, kw_only=True, slots=True)
class LandConfig:
    """What to land and how."""

    topic: KafkaTopic
    schema: Schema
    num_shards: int = 16
    """Session shards of the landing; fixed for its life, independent of the topic's partitions."""
    segment_samples: int = 200_000
    """Messages held in all before the fullest partition is written out."""
    segment_age: timedelta = timedelta(minutes=5)
    """A partition is written out at least this often."""
    instance: int = 0
    num_instances: int = 1
    """How many landers share the topic; each owns every num_instances-th partition."""
    until_end: bool = False
    """Stop at the end of the topic as it is now; otherwise go on until stopped."""

    def __post_init__(self) -> None:
        """Check ranges."""
        if self.num_shards < 1 or self.segment_samples < 1:
            raise ConfigError(
                f"expected num_shards and segment_samples >= 1, got {self.num_shards}, {self.segment_samples}"
            )
        if not 0 <= self.instance < self.num_instances:
            raise ConfigError(f"expected 0 <= instance < {self.num_instances}, got {self.instance}")


@dataclass(frozen=True, kw_only=True, slots=True)
class LandRun:
    """What the TOML file of `recoup log land` holds."""

    land: LandConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Landed:
    """What one run of a lander committed."""

    num_samples: int
    num_dead: int
    num_segments: int


@dataclass(slots=True)
class _Buffer:
    """Checked messages of one partition that are not written yet."""

    first: int
    """Offset of the next segment's start."""
    to: int
    opened: float
    at_end: bool = False
    batches: list[pa.RecordBatch] = field(default_factory=list)
    dead: list[DeadLetter] = field(default_factory=list)

    @property
    def num_messages(self) -> int:
        return len(self.dead) + sum(batch.num_rows for batch in self.batches)


def never() -> bool:
    """Say that nobody asked to stop."""
    return False


def land(
    config: LandConfig, root: Path, progress: Progress = no_progress, should_stop: Callable[[], bool] = never
) -> Landed:
    """Land the topic into the folder `root` until its end, or until `should_stop` says so.

    Stopping commits what is buffered. Run it again, with as many instances as wanted, to go on.

    Raises:
        LogError: messages not landed yet are gone from the topic, another lander holds a partition, the landing was
            made with another schema, or the brokers do not answer.
    """
    create_landing(root, config.topic.topic, config.schema, config.num_shards)
    lander = _Lander(config, root)
    try:
        with ExitStack() as locks:
            lander.start(locks)
            lander.run(locks, progress, should_stop)
    finally:
        lander.consumer.close()
    return Landed(num_samples=lander.num_samples, num_dead=lander.num_dead, num_segments=lander.num_segments)


class _Lander:
    def __init__(self, config: LandConfig, root: Path) -> None:
        self.config = config
        self.root = root
        self.run_id = uuid.uuid4().hex[:8]
        self.buffers: dict[int, _Buffer] = {}
        self.num_samples = self.num_dead = self.num_segments = 0
        self.library = kafka_library()
        self.consumer = self.library.Consumer(
            config.topic.client(
                {
                    "group.id": "recoup-land",
                    "enable.auto.commit": False,
                    "auto.offset.reset": "error",
                    "enable.partition.eof": True,
                    # How long a broker holds an empty answer back: the end of a topic is told by one.
                    "fetch.wait.max.ms": 50 if config.until_end else 500,
                }
            )
        )

    def start(self, locks: ExitStack) -> None:
        """Take up every owned partition that is not taken up yet, where the manifests end."""
        new = frozenset(self._owned()) - set(self.buffers)
        for partition in sorted(new):
            locks.enter_context(_locked(self.root / f".lock-p{partition:05d}", partition))
        segments = read_segments(self.root)
        removed = remove_orphans(self.root, new, segments)
        if removed:
            _logger.info("removed %d files that a killed lander had not committed", removed)
        reached = next_offsets(segments)
        for partition in sorted(new):
            low, _ = self._watermarks(partition)
            offset = reached.get(partition, low)
            if offset < low:
                raise LogError(
                    f"expected offset {offset} of '{self.config.topic.topic}/{partition}', got a topic that starts at "
                    f"{low}: {low - offset} messages were deleted before they were landed"
                )
            self.buffers[partition] = _Buffer(first=offset, to=offset, opened=time.monotonic())
        topic = self.config.topic.topic
        self.consumer.incremental_assign(
            [self.library.TopicPartition(topic, partition, self.buffers[partition].first) for partition in sorted(new)]
        )

    def run(self, locks: ExitStack, progress: Progress, should_stop: Callable[[], bool]) -> None:
        """Consume, buffer and write out until told to stop or at the end."""
        refreshed = heard = time.monotonic()
        most = min(_CONSUME_MESSAGES, self.config.segment_samples)
        while not should_stop():
            messages = self.consumer.consume(most, _CONSUME_SECONDS)
            heard = time.monotonic() if messages else heard
            self._take(messages)
            progress("land messages", self.num_samples + sum(one.num_messages for one in self.buffers.values()), None)
            self._write_out()
            if self.config.until_end and all(one.at_end for one in self.buffers.values()):
                break
            if self.config.until_end and time.monotonic() - heard > _IDLE_SECONDS:
                raise LogError(f"expected the end of '{self.config.topic.topic}', got nothing for {_IDLE_SECONDS:g} s")
            if time.monotonic() - refreshed > _REFRESH_SECONDS:
                self.start(locks)
                refreshed = time.monotonic()
        for partition in self.buffers:
            self._commit(partition)

    def _owned(self) -> list[int]:
        config = self.config
        try:
            topics = self.consumer.list_topics(config.topic.topic, timeout=_TIMEOUT_SECONDS).topics
        except self.library.KafkaException as err:
            raise LogError(f"expected brokers at {config.topic.bootstrap}, got: {err}") from err
        found = topics[config.topic.topic]
        if found.error is not None:
            raise LogError(f"expected a topic '{config.topic.topic}', got: {found.error.str()}")
        return [partition for partition in found.partitions if partition % config.num_instances == config.instance]

    def _watermarks(self, partition: int) -> tuple[int, int]:
        place = self.library.TopicPartition(self.config.topic.topic, partition)
        try:
            low, high = self.consumer.get_watermark_offsets(place, timeout=_TIMEOUT_SECONDS)
        except self.library.KafkaException as err:
            raise LogError(f"expected offsets of '{self.config.topic.topic}/{partition}', got: {err}") from err
        return low, high

    def _take(self, messages: list[Any]) -> None:
        taken: dict[int, list[Message]] = {}
        for message in messages:
            error = message.error()
            if error is None:
                taken.setdefault(message.partition(), []).append(
                    Message(message.offset(), message.key(), message.value())
                )
                self.buffers[message.partition()].at_end = False
            elif error.code() == self.library.KafkaError._PARTITION_EOF:
                self.buffers[message.partition()].at_end = True
            elif error.code() == self.library.KafkaError._AUTO_OFFSET_RESET:
                raise LogError(
                    f"expected messages of '{self.config.topic.topic}/{message.partition()}', got: {error.str()}: they "
                    "were deleted before they were landed"
                )
            elif error.fatal() or error.name() in _HOPELESS:
                raise LogError(f"expected messages of '{self.config.topic.topic}', got: {error.str()}")
            else:
                _logger.warning("kafka: %s", error.str())
        for partition, part in taken.items():
            buffer = self.buffers[partition]
            # A re-delivered message lies before `to`: it is in the buffer or in a committed segment already.
            fresh = [message for message in part if message.offset >= buffer.to]
            batches, dead = decode_messages(fresh, self.config.schema, self.config.topic.topic, partition)
            buffer.batches += batches
            buffer.dead += dead
            buffer.to = max([buffer.to, *(message.offset + 1 for message in fresh)])

    def _write_out(self) -> None:
        now = time.monotonic()
        for partition, buffer in self.buffers.items():
            if now - buffer.opened >= self.config.segment_age.total_seconds():
                self._commit(partition)
        while sum(one.num_messages for one in self.buffers.values()) >= self.config.segment_samples:
            self._commit(max(self.buffers, key=lambda partition: self.buffers[partition].num_messages))

    def _commit(self, partition: int) -> None:
        buffer = self.buffers[partition]
        if buffer.to > buffer.first:
            segment = write_segment(self.root, partition, buffer, self.config, self.run_id)
            commit_segment(self.root, segment)
            self.num_samples += segment.num_samples
            self.num_dead += segment.num_dead
            self.num_segments += 1
        self.buffers[partition] = _Buffer(first=buffer.to, to=buffer.to, opened=time.monotonic(), at_end=buffer.at_end)


def write_segment(root: Path, partition: int, buffer: "_Buffer", config: LandConfig, run_id: str) -> Segment:
    """Write and flush the files of a segment; they do not count before `commit_segment`."""
    name = f"p{partition:05d}-{buffer.first:020d}-{run_id}"
    files: list[LandedFile] = []
    for folder, table in _by_hour_and_shard(buffer.batches, config):
        path = root / "data" / folder / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, compression="zstd", write_page_checksum=True)
        _flush(path)
        files.append(
            LandedFile(
                path=str(path.relative_to(root)),
                num_samples=table.num_rows,
                num_bytes=path.stat().st_size,
                crc32=file_crc32(path),
            )
        )
    dead = f"dead/{name}.jsonl" if buffer.dead else ""
    if dead:
        (root / dead).write_text("".join(letter.as_json() for letter in buffer.dead))
        _flush(root / dead)
    return Segment(
        partition=partition,
        first=buffer.first,
        to=buffer.to,
        num_samples=sum(file.num_samples for file in files),
        num_dead=len(buffer.dead),
        files=tuple(files),
        dead_letters=dead,
    )


def _by_hour_and_shard(batches: list[pa.RecordBatch], config: LandConfig) -> Iterator[tuple[str, pa.Table]]:
    if not batches:
        return
    table = pa.Table.from_batches(batches).combine_chunks()
    hours = table[config.schema.time].to_numpy() // _HOUR_MS
    keys = table[config.schema.key].combine_chunks().cast(pa.string())
    shards = murmur2_partitions(keys.chunk(0) if isinstance(keys, pa.ChunkedArray) else keys, config.num_shards)
    order = np.lexsort((np.arange(len(hours)), shards, hours))
    edges = np.flatnonzero(np.diff(hours[order]) | np.diff(shards[order])) + 1
    for start, end in zip([0, *edges], [*edges, len(order)], strict=True):
        rows = order[start:end]
        hour = datetime.fromtimestamp(int(hours[rows[0]]) * 3600, UTC).strftime("%Y-%m-%dT%H")
        yield f"hour={hour}/shard={shards[rows[0]]:05d}", table.take(pa.array(rows))


@contextmanager
def _locked(path: Path, partition: int) -> Generator[None]:
    """Hold a lock that ends with the process, however it ends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as err:
            raise LogError(
                f"expected partition {partition} to be free, got a running lander that holds it (file '{path}'): give "
                "each lander its own 'instance'"
            ) from err
        yield
    finally:
        os.close(descriptor)


def _flush(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())
    sync_folder(path.parent)
