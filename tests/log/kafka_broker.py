"""librdkafka's own local broker: the real protocol over loopback, alive as long as the client that made it."""

import logging

import confluent_kafka

from recoup.log.kafka import KafkaTopic

PARTITIONS = 4  # of every topic of this broker
QUIET = logging.getLogger("tests.kafka")


class Broker:
    """A one-broker cluster in this process; other processes reach it by `bootstrap`."""

    def __init__(self):
        self.client = confluent_kafka.Producer({"test.mock.num.brokers": 1, "logger": QUIET, "linger.ms": 0})
        broker = next(iter(self.client.list_topics(timeout=10).brokers.values()))
        self.bootstrap = f"{broker.host}:{broker.port}"

    def topic(self, name):
        """Return the topic, made on first use."""
        self.client.list_topics(name, timeout=10)
        return KafkaTopic(bootstrap=self.bootstrap, topic=name, options={"allow.auto.create.topics": "true"})

    def send(self, topic, messages, partition=-1):
        """Send (key, value) pairs as they are."""
        for key, value in messages:
            place = {"partition": partition} if partition >= 0 else {}
            self.client.produce(topic.topic, key=key, value=value, **place)
        assert self.client.flush(10) == 0
