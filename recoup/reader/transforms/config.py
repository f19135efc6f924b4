"""The union of transforms, told apart by `kind`; in TOML a list of tables.

    [[reader.transforms]]
    kind = "truncate"
    features = ["hist_items"]
    last = 50

All act on unique rows. Those that change single IDs act once on a group's shared buffer and keep its windows;
`truncate` only moves windows; `fill` points empty lists to one appended ID; `unique_ids`, `ngram` and `cross` write
new rows (windows end there). Each has an oracle in tests/reader/oracles.py.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from recoup.core import ConfigError


def _positive(kind: str, name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{kind}: expected {name} >= 1, got {value}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Modulo:
    """ID -> ID mod `size`, 0 .. size-1 for negative IDs too (the sign of the divisor, as in Python)."""

    kind: Literal["modulo"] = "modulo"
    features: tuple[str, ...]
    size: int

    def __post_init__(self) -> None:
        """Check the size."""
        _positive(self.kind, "size", self.size)


@dataclass(frozen=True, kw_only=True, slots=True)
class Hash:
    """ID -> mix(ID, seed) reduced to 0 .. size-1; mix is splitmix64's finalizer, so neighbours spread evenly.

    Sizes below 2**32 reduce by the high half of (high 32 bits * size); others by modulo.
    """

    kind: Literal["hash"] = "hash"
    features: tuple[str, ...]
    size: int
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the size."""
        _positive(self.kind, "size", self.size)


@dataclass(frozen=True, kw_only=True, slots=True)
class Vocabulary:
    """ID -> 1 + its index in the vocabulary; an ID that is not in it -> `unknown`."""

    kind: Literal["vocabulary"] = "vocabulary"
    features: tuple[str, ...]
    ids: tuple[int, ...] = ()
    path: Path | None = None
    """Text file with one ID a line, instead of `ids`."""
    unknown: int = 0

    def __post_init__(self) -> None:
        """Check that exactly one source of IDs is given."""
        if bool(self.ids) == (self.path is not None):
            raise ConfigError(f"vocabulary: expected either ids or path, got {len(self.ids)} ids and path {self.path}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Truncate:
    """List -> its last `last` IDs (all, if it has fewer)."""

    kind: Literal["truncate"] = "truncate"
    features: tuple[str, ...]
    last: int

    def __post_init__(self) -> None:
        """Check the number."""
        _positive(self.kind, "last", self.last)


@dataclass(frozen=True, kw_only=True, slots=True)
class UniqueIds:
    """List -> its distinct IDs, each at its first place; not for weighted features."""

    kind: Literal["unique_ids"] = "unique_ids"
    features: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fill:
    """Empty list -> [`value`]; not for weighted features."""

    kind: Literal["fill"] = "fill"
    features: tuple[str, ...]
    value: int


@dataclass(frozen=True, kw_only=True, slots=True)
class NGram:
    """New feature `output` of the same group: every `n` neighbouring IDs, mixed and reduced to 0 .. size-1."""

    kind: Literal["ngram"] = "ngram"
    feature: str
    n: int
    size: int
    output: str

    def __post_init__(self) -> None:
        """Check the numbers."""
        _positive(self.kind, "size", self.size)
        _positive(self.kind, "n", self.n)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cross:
    """New feature `output`: every pair (ID of `first`, ID of `second`), mixed and reduced to 0 .. size-1.

    Both must be of one dedup group (or both of none): only then does a pair of rows repeat as the rows do.
    """

    kind: Literal["cross"] = "cross"
    first: str
    second: str
    size: int
    output: str

    def __post_init__(self) -> None:
        """Check the size."""
        _positive(self.kind, "size", self.size)


@dataclass(frozen=True, kw_only=True, slots=True)
class Clamp:
    """Dense value, or sparse ID -> the nearest value in `low` .. `high`."""

    kind: Literal["clamp"] = "clamp"
    features: tuple[str, ...]
    low: float
    high: float

    def __post_init__(self) -> None:
        """Check the order."""
        if not self.low <= self.high:
            raise ConfigError(f"clamp: expected low <= high, got {self.low} and {self.high}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Log1p:
    """Dense value x -> log(1 + x), float32, error below 1 unit in the last place; never NaN or infinite.

    Negative x has no safe logarithm (x <= -1 has none): `zero` takes max(x, 0) first, as DLRM's scripts do for
    Criteo; `symmetric` gives sign(x) * log(1 + |x|).
    """

    kind: Literal["log1p"] = "log1p"
    features: tuple[str, ...]
    negative: Literal["zero", "symmetric"] = "zero"


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucketise:
    """New sparse feature `output`, one ID a sample: how many `boundaries` are <= the dense value."""

    kind: Literal["bucketise"] = "bucketise"
    feature: str
    boundaries: tuple[float, ...]
    output: str

    def __post_init__(self) -> None:
        """Check that boundaries rise."""
        if not self.boundaries or list(self.boundaries) != sorted(set(self.boundaries)):
            raise ConfigError(f"bucketise: expected rising boundaries, got {list(self.boundaries)}")


TransformConfig: TypeAlias = (
    Modulo | Hash | Vocabulary | Truncate | UniqueIds | Fill | NGram | Cross | Clamp | Log1p | Bucketise
)
