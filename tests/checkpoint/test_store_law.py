"""Law 5: restore(save(x)) = x, for any course of saves of all or some rows, against a plain dictionary."""

import uuid

import fsspec
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from recoup.checkpoint import StoreConfig
from tests.checkpoint.builders import DIMS, SIZES, contents, make_store, make_views, request, same, step

ROWS = st.fixed_dictionaries(
    {}, optional={name: st.lists(st.integers(0, total - 1), max_size=12) for name, total in SIZES.items()}
)


class SavesAndRestores(RuleBasedStateMachine):
    """Live tables, a store, and the oracle: what each committed step must give back."""

    def __init__(self):
        super().__init__()
        self.folder = f"memory://{uuid.uuid4().hex}"
        self.views = make_views()
        self.saved = None
        self.step = 0
        self.pending = None
        self.store = make_store(self.folder)

    def teardown(self):
        self.store.close()
        if self.saved is not None:
            fsspec.filesystem("memory").rm(self.folder, recursive=True)

    @initialize(
        kind=st.sampled_from(["table", "range", "hash"]),
        shards=st.integers(1, 4),
        keep=st.integers(1, 3),
        chain=st.integers(0, 3),
        room=st.sampled_from([0, 1]),
    )
    def open_store(self, kind, shards, keep, chain, room):
        """Open a store of any kind; with room for one byte every save goes shard by shard."""
        config = StoreConfig(keep=keep, max_chain=chain, max_snapshot_bytes=room, max_restore_bytes=300)
        self.store = make_store(self.folder, kind=kind, shards=shards, config=config)
        self.keep, self.chain = keep, chain

    @rule(rows=ROWS)
    def train(self, rows):
        """Change some rows."""
        self.step += 1
        step(self.views, self.step, {name: torch.tensor(ids, dtype=torch.int64) for name, ids in rows.items()})

    @rule()
    def save_all(self):
        """Save every row."""
        self.finish()
        self.pending = self.store.start_save(request(self.views, self.step))
        self.saved = contents(self.views), self.step

    @precondition(lambda self: self.saved is not None)
    @rule(rows=ROWS)
    def save_some(self, rows):
        """Save some rows, in any order, some of them twice; training goes on before they are written."""
        self.finish()
        chosen = {name: torch.tensor(ids, dtype=torch.int64) for name, ids in rows.items()}
        self.pending = self.store.start_save(request(self.views, self.step, rows=chosen))
        oracle = {name: {part: rows.clone() for part, rows in parts.items()} for name, parts in self.saved[0].items()}
        for name, ids in rows.items():
            for part, live in self.views[name].parts().items():
                for row in ids:
                    oracle[name][part][row] = live[row]
        self.saved = oracle, self.step

    @precondition(lambda self: self.saved is not None)
    @rule()
    def compact(self):
        """Merge all chains."""
        self.finish()
        assert all(entry.kind == "base" for entry in self.store.compact().entries)

    @precondition(lambda self: self.saved is not None)
    @rule(other=st.booleans(), part=st.sampled_from([(0, 1), (0, 2), (1, 2), (2, 3)]))
    def restore(self, other, part):
        """Restore in place, or into a rank's ranges by another store object: all is as the oracle says."""
        self.finish()
        oracle, number = self.saved
        store = make_store(self.folder, kind="hash", shards=2) if other else self.store
        views = make_views(seed=9, part=part) if other else self.views
        found = store.restore(views)
        for name, view in views.items():
            for key, live in view.parts().items():
                assert torch.equal(live, oracle[name][key][view.first_row : view.first_row + live.shape[0]])
        assert found.dense["w"].tolist() == [float(number)] * 3
        assert found.extra == {"at": number}

    @invariant()
    def retention(self):
        """As many as asked for are kept, and one that shares no file with the newest; all complete, no stray file."""
        if self.pending is None or not self.pending.done:
            return
        found = self.store.checkpoints()
        assert 1 <= len(found) <= self.keep + 1
        newest = set(found[0].files())
        assert all(newest.isdisjoint(older.files()) for older in found[self.keep :])
        for manifest in found:
            for shard in range(self.store.plan.num_shards):
                assert [entry.kind for entry in manifest.chain(shard)].count("base") == 1
                assert len(manifest.chain(shard)) <= self.chain + 1
        assert set(self.store.storage.sizes("checkpoints")) == {manifest.name for manifest in found}

    def finish(self):
        if self.pending is not None:
            self.pending.result()


SavesAndRestores.TestCase.settings = settings(max_examples=25, stateful_step_count=14, deadline=None)
test_restore_of_save_is_identity = SavesAndRestores.TestCase


def test_dims_differ():
    """The tables of this law have different dims, one of them odd."""
    assert len(set(DIMS.values())) == 3
    assert same(make_views(), contents(make_views()))
