"""Samples as Kafka messages: key = the session key's text, value = one JSON object with the schema's columns.

Numbers survive exactly: integers as integers, float32 as the shortest text that reads back equal. A message that
breaks the schema becomes a dead letter with its reason; it never takes its neighbours along.
"""

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from recoup.log.conform import conform
from recoup.log.errors import LogError
from recoup.log.json_blocks import fast_batch, json_shape
from recoup.log.jsonlines import objects_to_batch, parse_object
from recoup.log.kafka.partition import key_bytes
from recoup.log.where import Where
from recoup.schema import Schema


class Message(NamedTuple):
    """What a consumer gets."""

    offset: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetter:
    """A message that is not a sample of the schema."""

    partition: int
    offset: int
    reason: str
    key: str
    value: str
    """Text, or `base64:` and the bytes where they are not UTF-8."""

    def as_json(self) -> str:
        """Return one JSON line."""
        fields = {name: getattr(self, name) for name in ("partition", "offset", "reason", "key", "value")}
        return json.dumps(fields) + "\n"


def encode_samples(batch: pa.RecordBatch, schema: Schema) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and value of every sample of a canonical batch."""
    for row in batch.to_pylist():
        yield key_bytes(row[schema.key]), json.dumps(row, separators=(",", ":")).encode()


def decode_messages(
    messages: Sequence[Message], schema: Schema, topic: str, partition: int
) -> tuple[list[pa.RecordBatch], list[DeadLetter]]:
    """Return the samples of one partition's messages in order, as canonical batches, and those that are none."""
    where = f"{topic}/{partition}"
    whole = _all_at_once(messages, schema, where)
    if whole is not None:
        return [whole], []
    dead: list[DeadLetter] = []
    rows: list[tuple[Message, dict[str, Any]]] = []
    for message in messages:
        try:
            rows.append((message, parse_object(message.value or b"", where, message.offset)))
        except LogError as err:
            dead.append(_dead_letter(message, partition, err))
    batches = list(_conform(rows, schema, where, partition, dead))
    dead.sort(key=lambda letter: letter.offset)
    return batches, dead


def _all_at_once(messages: Sequence[Message], schema: Schema, where: str) -> pa.RecordBatch | None:
    """Return all messages as one batch if every one is a sample, else None."""
    values = [message.value for message in messages if message.value]
    if not values or len(values) < len(messages):
        return None
    batch = fast_batch(values, json_shape(schema, schema.column_names))
    if batch is None:
        return None
    try:
        return conform(batch, schema, where)
    except LogError:
        return None


def _conform(
    rows: Sequence[tuple[Message, dict[str, Any]]], schema: Schema, where: str, partition: int, dead: list[DeadLetter]
) -> Iterator[pa.RecordBatch]:
    """Check all rows at once; if that fails halve them, until the bad ones stand alone."""
    if not rows:
        return
    first = rows[0][0].offset
    try:
        shape = json_shape(schema, schema.column_names)
        batch = objects_to_batch([row for _, row in rows], shape, Where(where, first))
        yield conform(batch, schema, where, first_row=first)
    except LogError as err:
        if len(rows) == 1:
            dead.append(_dead_letter(rows[0][0], partition, err))
            return
        middle = len(rows) // 2
        yield from _conform(rows[:middle], schema, where, partition, dead)
        yield from _conform(rows[middle:], schema, where, partition, dead)


def _dead_letter(message: Message, partition: int, err: LogError) -> DeadLetter:
    return DeadLetter(
        partition=partition,
        offset=message.offset,
        reason=str(err),
        key=_as_text(message.key or b""),
        value=_as_text(message.value or b""),
    )


def _as_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(data).decode()
