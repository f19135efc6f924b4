"""A Kafka topic, and the client library, which is an extra."""

import importlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from recoup.core import ConfigError
from recoup.log.errors import LogError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class KafkaTopic:
    """Where a topic is."""

    bootstrap: str
    """Brokers to start from, `host:port,host:port`."""
    topic: str
    options: dict[str, str] = field(default_factory=dict)
    """Further librdkafka settings, such as `security.protocol`; those that the laws rest on are refused."""

    def __post_init__(self) -> None:
        """Refuse settings that would split sessions or lose messages."""
        fixed = ("partitioner", "enable.auto.commit", "auto.offset.reset", "enable.idempotence", "acks", "key")
        for name in fixed:
            if name in self.options:
                raise ConfigError(f"expected no {name!r} in the options: Recoup fixes it, got {self.options[name]!r}")
        if not self.topic:
            raise ConfigError("expected the name of a topic, got ''")

    def client(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return librdkafka settings: the options, and `settings` over them."""
        return {**self.options, "bootstrap.servers": self.bootstrap, "logger": logger, **settings}


def kafka_library() -> Any:  # noqa: ANN401
    """Return the `confluent_kafka` module.

    Raises:
        LogError: it is not installed.
    """
    try:
        return importlib.import_module("confluent_kafka")
    except ImportError as err:
        raise LogError(f"expected the Kafka client, got: {err}: pip install 'recoup[kafka]'") from err
