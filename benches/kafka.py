"""What is keying a Kafka topic by session worth in bytes on the wire, on the recd-like log (declared synthetic)?

Baseline in the same run: the same messages, producer settings and broker, keyed at random. The broker is librdkafka's
own (real protocol, loopback). Only the placement of messages differs; batches are full (1 MB before compression).
"""

import argparse
import ctypes
import json
import logging
import time
from datetime import timedelta
from itertools import islice
from pathlib import Path

import confluent_kafka

from recoup.log import SyntheticLog, open_log
from recoup.log.kafka import KafkaTopic, ProduceConfig, encode_samples, send_messages


class LocalBroker:
    """librdkafka's broker with topics of any number of partitions (its Python binding always makes four)."""

    def __init__(self):
        folder = Path(confluent_kafka.__file__).parent.with_name("confluent_kafka.libs")
        lib = ctypes.CDLL(str(next(folder.glob("librdkafka*"))))
        for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
            getattr(lib, name).restype = ctypes.c_void_p
        lib.rd_kafka_new.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
        lib.rd_kafka_mock_cluster_new.argtypes = [ctypes.c_void_p, ctypes.c_int]
        lib.rd_kafka_mock_cluster_bootstraps.argtypes = [ctypes.c_void_p]
        lib.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
        lib.rd_kafka_mock_topic_create.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int]
        handle = lib.rd_kafka_new(0, lib.rd_kafka_conf_new(), ctypes.create_string_buffer(512), 512)
        self._lib = lib
        self._cluster = lib.rd_kafka_mock_cluster_new(handle, 1)
        self.bootstrap = lib.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()

    def topic(self, name, num_partitions):
        assert self._lib.rd_kafka_mock_topic_create(self._cluster, name.encode(), num_partitions, 1) == 0
        return KafkaTopic(bootstrap=self.bootstrap, topic=name)


def first_messages(num_samples):
    """The head of a long log, so that sessions interleave as in the whole one (1.15 a window of 4,096)."""
    source = open_log(SyntheticLog(num_samples=max(num_samples, 1_000_000), seed=1))
    batches = source.batches(batch_samples=1024)
    return list(islice((pair for batch in batches for pair in encode_samples(batch, source.schema)), num_samples))


def measure(broker, messages, key, num_partitions):
    topic = broker.topic(f"{key}-{num_partitions}", num_partitions)
    config = ProduceConfig(topic=topic, key=key, linger=timedelta(seconds=30))
    start = time.perf_counter()
    sent = send_messages(messages, config)
    return sent, time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action=argparse.BooleanOptionalAction, default=False)
    quick = parser.parse_args().quick
    logging.getLogger("recoup.log.kafka.topic").setLevel(logging.ERROR)
    messages = first_messages(30_000 if quick else 200_000)
    broker = LocalBroker()
    result = {"bench": "kafka", "num_samples": len(messages), "raw_bytes": sum(len(value) for _, value in messages)}
    print(f"{'partitions':>10} {'key':>8} {'bytes sent':>12} {'a sample':>9} {'samples/s':>10}")
    for num_partitions in (4, 64) if quick else (4, 64, 256):
        sizes = {}
        for key in ("random", "session"):
            sent, seconds = measure(broker, messages, key, num_partitions)
            assert sent.num_samples == len(messages), "both ways send every message"
            sizes[key] = sent.sent_bytes
            print(
                f"{num_partitions:>10} {key:>8} {sent.sent_bytes:>12} {sent.sent_bytes / len(messages):>9.0f} "
                f"{len(messages) / seconds:>10.0f}"
            )
        result[f"ratio_random_to_session_{num_partitions}_partitions"] = round(sizes["random"] / sizes["session"], 4)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
