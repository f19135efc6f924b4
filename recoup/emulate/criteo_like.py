"""A synthetic set in the shape of Criteo's display-advertising data: 13 dense and 26 categorical features.

Synthetic, and to be called so wherever it is shown: the cardinalities are those of Criteo Kaggle scaled down (the 7
largest hold about 99.6 % of the rows), IDs are Zipf, and the label comes from a planted model (an effect of each ID, of
some pairs of features, and of the dense values), so that a model can learn, and lose, something in every row.
Deterministic: the same configuration gives the same samples.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from recoup.core import ConfigError, generator
from recoup.emulate.samples import Dataset, Samples, plain_schema, split_by_time

# Distinct values of the 26 categorical columns of Criteo Kaggle, as DLRM's public preprocessing counts them.
_KAGGLE = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10),
    *(5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class CriteoLikeData:
    """The synthetic set."""

    num_samples: int = 120_000
    scale: float = 0.003
    """Cardinalities over Criteo Kaggle's; at least 3 rows a table."""
    zipf: float = 1.1
    """Exponent of the popularity of IDs."""
    seed: int = 0
    """Of the data; runs of other training seeds share the data."""
    test_fraction: float = 0.2
    kind: Literal["criteo_like"] = "criteo_like"

    def __post_init__(self) -> None:
        """Check the values."""
        if self.num_samples < 100 or not 0 < self.scale <= 1 or not 0 < self.test_fraction < 1 or self.zipf < 0:
            raise ConfigError(f"expected 100 samples or more, scale and test_fraction in (0, 1], got {self}")


def criteo_like(config: CriteoLikeData) -> Dataset:
    """Generate the set. Cost: about 2 us a sample."""
    sizes = {f"c{i}": max(3, round(size * config.scale)) for i, size in enumerate(_KAGGLE)}
    draw = generator(config.seed, "criteo_like", "samples")
    truth = generator(config.seed, "criteo_like", "model")
    count = config.num_samples
    counts = np.floor(np.exp(draw.normal(1.0, 1.5, size=(count, 13)))).astype(np.float32)
    dense = np.log1p(counts)
    logit = 0.25 * (dense - dense.mean(axis=0)) @ truth.normal(size=13)
    values: dict[str, NDArray[np.int64]] = {}
    vectors: list[NDArray[np.float64]] = []
    for name, size in sizes.items():
        ids = _zipf_ids(draw, size, config.zipf, count)
        effect = truth.normal(scale=0.35, size=size)
        logit += effect[ids]
        if size >= 100:
            vectors.append(truth.normal(scale=0.45, size=(size, 2))[ids])
        values[name] = truth.permutation(size)[ids]
    for first, second in zip(vectors[::2], vectors[1::2], strict=False):
        logit += (first * second).sum(axis=1)
    chance = 1 / (1 + np.exp(-(logit - logit.mean() - 1.3)))  # about 26 % positive, as Criteo Kaggle
    samples = Samples(
        dense=dense,
        label=(draw.random(count) < chance).astype(np.float32),
        values=values,
        offsets=dict.fromkeys(values, np.arange(count + 1)),
        time=np.arange(count) * 1000,
    )
    train, test = split_by_time(samples, config.test_fraction)
    return Dataset(
        name="criteo_like",
        synthetic=True,
        schema=plain_schema([f"i{i}" for i in range(13)], list(values), "click"),
        num_rows=sizes,
        train=train,
        test=test,
    )


def _zipf_ids(rng: np.random.Generator, size: int, exponent: float, count: int) -> NDArray[np.int64]:
    """Return `count` ranks below `size` drawn with probability in proportion to (rank + 1) ** -exponent."""
    weights = np.arange(1, size + 1, dtype=np.float64) ** -exponent
    cumulative = np.cumsum(weights)
    found = np.searchsorted(cumulative, rng.random(count) * cumulative[-1])
    return np.minimum(found, size - 1)
