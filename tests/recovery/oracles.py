"""Slow, obvious counts of what was lost: every (sample, shard) pair and every access on its own."""


class BruteForce:
    """A job of `num_shards` shards in which every sample updates every shard once."""

    def __init__(self, num_shards):
        self.num_shards = num_shards
        self.now = 0
        self.history = []  # per sample: set of shards that hold its update
        self.saved = [set() for _ in range(num_shards)]  # samples in the shard's last save
        self.counted_again = 0  # pairs as the paper counts them

    def train(self, count):
        for _ in range(count):
            self.history.append(set(range(self.num_shards)))
            self.now += 1

    def save(self, shards):
        for shard in shards:
            self.saved[shard] = {i for i, held in enumerate(self.history) if shard in held}
        for shard in shards:
            self.positions[shard] = self.now

    @property
    def positions(self):
        self.__dict__.setdefault("_positions", [0] * self.num_shards)
        return self._positions

    def lose(self, shards):
        for shard in set(shards):
            self.counted_again += self.now - self.positions[shard]
            for i, held in enumerate(self.history):
                if i not in self.saved[shard]:
                    held.discard(shard)

    def missing(self):
        return sum(self.num_shards - len(held) for held in self.history)
