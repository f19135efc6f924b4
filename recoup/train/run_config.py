"""The configuration of one run: table, reader, model, training, evaluation, checkpoints; one TOML file."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from recoup.checkpoint.policies import SAVE_FRACTION, PolicyName
from recoup.core import ConfigError
from recoup.model import DLRMConfig
from recoup.reader import ReaderConfig, SampleRange
from recoup.reader.selection import select
from recoup.reader.transforms.config import TransformConfig
from recoup.reader.transforms.pipeline import compile_transforms
from recoup.schema import DenseFeature, Schema, SparseFeature
from recoup.train.config import TrainConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationConfig:
    """Which samples are held out, and how they are read."""

    samples: SampleRange = field(default_factory=lambda: SampleRange(from_fraction=0.8))
    """Held-out part of the table by time."""
    batch_size: int = 4096
    after_epochs: bool = False
    """Evaluate after every epoch too, not only at the end."""

    def __post_init__(self) -> None:
        """Check the batch size."""
        if self.batch_size < 1:
            raise ConfigError(f"expected batch_size >= 1, got {self.batch_size}")


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig:
    """When the run is saved; it is always saved at its end."""

    every_steps: int | None = None
    """Save after so many steps; left out: only at the end of every epoch."""
    keep: int = 2
    """Complete checkpoints kept."""
    policy: PolicyName = "none"
    """Which rows are saved first. With one, `fraction` of each large table's rows (and the small tables whole) are
    saved every `fraction` of `every_steps`, in the background; everything is saved at the start and at the end."""
    fraction: float = SAVE_FRACTION
    """r of the priority saves."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not 0.0 < self.fraction <= 1.0:
            raise ConfigError(f"expected a fraction in (0, 1], got {self.fraction}")
        if self.policy != "none" and self.every_steps is None:
            raise ConfigError(
                f"expected every_steps with the policy {self.policy!r}, got none: it is the whole interval"
            )
        if self.every_steps is not None and self.every_steps < 1:
            raise ConfigError(f"expected every_steps >= 1, got {self.every_steps}")
        if self.keep < 1:
            raise ConfigError(f"expected keep >= 1, got {self.keep}")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """A run."""

    table: str
    """Folder of the session table, or its URL ("s3://bucket/table")."""
    reader: ReaderConfig
    """Of the training samples; features left out = those the model needs."""
    model: DLRMConfig
    train: TrainConfig = field(default_factory=TrainConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)


MAY_CHANGE = ("table", "evaluation", "checkpoint", "train.num_epochs", "train.max_steps", "train.num_threads")
"""Keys that a resumed run may set anew; the reader's workers and limits too."""
_READER_MAY_CHANGE = ("num_workers", "prefetch", "worker_silence_limit", "worker_stall_limit", "max_worker_restarts")


def may_change(key: str) -> bool:
    """Whether a resumed run may have another value of the key (a dotted path)."""
    free = (*MAY_CHANGE, *(f"reader.{name}" for name in _READER_MAY_CHANGE))
    return any(key == name or key.startswith(name + ".") for name in free)


def training_reader(config: RunConfig, schema: Schema) -> ReaderConfig:
    """Return the reader's configuration with only what model and transforms need, IDs checked against the tables.

    Args:
        config: the run.
        schema: of the table.
    """
    reader, model = config.reader, config.model
    made = _names(reader.transforms, ("output",))
    wanted = (*model.features, *_names(reader.transforms, ("feature", "features", "first", "second")))
    in_table = tuple(name for name in schema.sparse_names if name in wanted)
    absent = tuple(name for name in model.features if name not in (*in_table, *made))
    dense = model.dense
    if dense is not None:
        dense = (*dense, *(name for name in schema.dense_names if name in wanted and name not in dense))
    return replace(
        reader,
        features=reader.features or (*in_table, *absent),
        dense=dense if reader.dense is None else reader.dense,
        num_embeddings={**model.num_embeddings, **reader.num_embeddings},
    )


def evaluation_reader(config: RunConfig, schema: Schema) -> ReaderConfig:
    """Return the configuration that reads the held-out samples: in table order, each once."""
    return replace(
        training_reader(config, schema),
        samples=config.evaluation.samples,
        batch_size=config.evaluation.batch_size,
        shuffle="chronological",
        max_samples_per_session_per_batch=0,
        drop_last=False,
    )


def batch_schema(table: Schema, reader: ReaderConfig) -> Schema:
    """Return the schema of a reader's batches: selected features, and those that transforms add, with their groups.

    Raises:
        ReaderError: a feature is not in the table and its absence is an error.
    """
    selection = select(table, reader.features, reader.dense, reader.missing)
    groups = compile_transforms(reader.transforms, selection).groups
    sparse = tuple(
        SparseFeature(name=name, group=group, weighted=name in selection.weighted)
        for group, features in groups
        for name in features
    )
    return replace(table, dense=tuple(DenseFeature(name=name) for name in selection.dense), sparse=sparse)


def _names(transforms: Sequence[TransformConfig], keys: Sequence[str]) -> tuple[str, ...]:
    """Return the features that transforms name under `keys`."""
    found: list[str] = []
    for transform in transforms:
        for key in keys:
            value = getattr(transform, key, ())
            found += [value] if isinstance(value, str) else list(value)
    return tuple(found)
