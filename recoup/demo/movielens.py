"""The demo's recipe: MovieLens-100k, sessions by a gap of 30 minutes, a small DLRM.

Label: rating >= 4. User side, frozen at session start: last 50 rated and last 50 liked films (they share the film table
with the candidate), gender, the mean label so far. Item side: the film, its genres. Age, occupation and the user's own
ID are in the log and the table, but the model leaves them out: with 943 users they are learnt by heart (85 % of the
test rows are users never seen), and every one of them lowers the test AUC. A session of this log has 36 ratings of one
user, so a batch of whole sessions is far from a random sample: the IID guard allows 8 samples of a session in a batch.
"""

from datetime import timedelta
from pathlib import Path

from recoup.log import RecBoleLog, movielens_folder
from recoup.model import DLRMConfig, EmbeddingTable
from recoup.reader import ReaderConfig, SampleRange
from recoup.table import BuildConfig, HistoryFeature, HistoryMean, SessionRule
from recoup.train import CheckpointConfig, EvaluationConfig, RunConfig, TrainConfig

TRAIN_SHARE = 0.8
"""The last fifth of the samples, by time, is the test set."""
NUM_FILMS, NUM_GENRES = 1682, 20
_DIM = 16
_INIT = 0.01


def movielens_log() -> RecBoleLog:
    """Return where the log is.

    Raises:
        LogError: the wheel that ships it is not installed.
    """
    return RecBoleLog(path=str(movielens_folder()))


def movielens_build() -> BuildConfig:
    """Return how the log becomes sessions."""
    return BuildConfig(
        sessions=SessionRule(gap=timedelta(minutes=30)),
        histories=(
            HistoryFeature(name="rated", source="item_id", last=50),
            HistoryFeature(name="liked", source="item_id", last=50, label="label"),
        ),
        means=(HistoryMean(name="user_mean", label="label", prior=0.55),),
    )


def movielens_run(table: Path, *, dedup: bool, num_epochs: int, seed: int) -> RunConfig:
    """Return the run: the same batches and model with and without deduplication."""
    item = EmbeddingTable(
        name="film",
        num_embeddings=NUM_FILMS + 1,
        embedding_dim=_DIM,
        features=("item_id", "rated", "liked"),
        pooling="mean",
        init_range=_INIT,
    )
    genre = EmbeddingTable(
        name="genre",
        num_embeddings=NUM_GENRES,
        embedding_dim=_DIM,
        features=("class",),
        pooling="mean",
        init_range=_INIT,
    )
    gender = EmbeddingTable(
        name="gender", num_embeddings=3, embedding_dim=_DIM, features=("gender",), pooling="mean", init_range=_INIT
    )
    return RunConfig(
        table=str(table),
        reader=ReaderConfig(
            batch_size=1024,
            shuffle="full",
            window_sessions=1 << 16,
            max_samples_per_session_per_batch=8,
            samples=SampleRange(to_fraction=TRAIN_SHARE),
            seed=seed,
            dedup=dedup,
        ),
        model=DLRMConfig(
            tables=(item, genre, gender), bottom_mlp=(32,), top_mlp=(64,), interaction="dot_concat", label="label"
        ),
        train=TrainConfig(seed=seed, num_epochs=num_epochs, table_lr=0.03, dense_lr=3e-3),
        evaluation=EvaluationConfig(samples=SampleRange(from_fraction=TRAIN_SHARE)),
        checkpoint=CheckpointConfig(),
    )
