"""A log through Kafka: session-keyed producing, and landing exactly once (needs the `kafka` extra)."""

from recoup.log.kafka.lander import LandConfig, Landed, LandRun, land
from recoup.log.kafka.messages import DeadLetter, decode_messages, encode_samples
from recoup.log.kafka.partition import murmur2_partition, murmur2_partitions
from recoup.log.kafka.producer import ProduceConfig, Produced, ProduceRun, produce, send_messages
from recoup.log.kafka.topic import KafkaTopic

__all__ = [
    "DeadLetter",
    "KafkaTopic",
    "LandConfig",
    "LandRun",
    "Landed",
    "ProduceConfig",
    "ProduceRun",
    "Produced",
    "decode_messages",
    "encode_samples",
    "land",
    "murmur2_partition",
    "murmur2_partitions",
    "produce",
    "send_messages",
]
