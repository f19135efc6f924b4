"""Priority policies: each chooses what it says, in the memory it says, and goes on after a restore."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recoup.checkpoint import TableView
from recoup.checkpoint.policies import (
    MFU,
    SCAR,
    SSU,
    AdagradChange,
    DirtyRows,
    StaleUse,
    large_tables,
    priority_rows,
)
from recoup.core import StateError
from tests.checkpoint.builders import make_store, make_views, request

ROWS, DIM = 60, 3
STEPS = st.lists(st.lists(st.integers(0, ROWS - 1), max_size=20), min_size=1, max_size=8)
NAMES = ["MFU", "SSU", "SCAR", "AdagradChange", "DirtyRows", "StaleUse"]


def table():
    """Return one view of a table at rest."""
    weight, momentum = torch.zeros(ROWS, DIM), torch.zeros(ROWS)
    return {
        "t": TableView(name="t", weight=weight, optimizer={"momentum1": momentum}, first_row=0, num_rows_total=ROWS)
    }


def make(name, views):
    """Return a policy over all the tables of `views`."""
    sizes = {table: view.num_rows_total for table, view in views.items()}
    kinds = {"MFU": MFU, "SSU": SSU, "DirtyRows": DirtyRows, "StaleUse": StaleUse}
    return kinds[name](sizes) if name in kinds else {"SCAR": SCAR, "AdagradChange": AdagradChange}[name](views)


def use(policy, views, name, ids):
    """Train on some rows: each of them moves by how often it is there, and its momentum grows."""
    rows = torch.tensor(ids, dtype=torch.int64)
    policy.observe(name, rows)
    views[name].weight.index_add_(0, rows, torch.ones(len(ids), views[name].weight.shape[1]))
    views[name].optimizer["momentum1"].index_add_(0, rows, torch.ones(len(ids)))


@given(STEPS, st.integers(0, ROWS), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_counting_policies_choose_the_most_used_rows(steps, num_rows, saved_at):
    """MFU, SCAR and Adagrad-change equal the oracle: rows most used since they were last saved (use = change here)."""
    for name in ("MFU", "SCAR", "AdagradChange"):
        views = table()
        policy, used, at_save = make(name, views), Counter(), Counter()
        for number, ids in enumerate(steps):
            use(policy, views, "t", ids)
            used.update(ids)
            if number == saved_at:
                rows = policy.select("t", 10)
                policy.saved("t", rows)
                at_save.update({row: used[row] for row in rows.tolist()})
        if name == "AdagradChange":
            score = {row: (used[row] + 1e-12) / (at_save[row] + 1e-12) for row in used if used[row] > at_save[row]}
        else:
            score = {row: used[row] - at_save[row] for row in used if used[row] > at_save[row]}
        chosen = policy.select("t", num_rows).tolist()
        assert chosen == sorted(set(chosen))
        assert len(chosen) == min(num_rows, len(score))
        if chosen:
            left = [score[row] for row in set(score) - set(chosen)]
            assert min(score[row] for row in chosen) >= max(left, default=0) * (1 - 1e-6)


@given(STEPS, st.integers(0, ROWS), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_stale_use_chooses_by_accesses_times_age(steps, num_rows, saved_at):
    """StaleUse equals the oracle: accesses since the last save times steps since then, of equal ones the first."""
    policy, used, since = StaleUse({"t": ROWS}), Counter(), dict.fromkeys(range(ROWS), 0)
    for number, ids in enumerate(steps, 1):
        policy.observe("t", torch.tensor(ids, dtype=torch.int64))
        used.update(ids)
        if number == saved_at:
            rows = policy.select("t", 10)
            policy.saved("t", rows)
            for row in rows.tolist():
                used[row], since[row] = 0, number
    score = {row: used[row] * (len(steps) - since[row]) for row in used if used[row]}
    expected = sorted(sorted(score, key=lambda row: (-score[row], row))[:num_rows])
    assert policy.select("t", num_rows).tolist() == expected


def test_stale_use_loses_fewer_accesses_than_mfu():
    """Zipf use, the same volume of saves: unsaved accesses, averaged over time, are at least a fifth fewer."""
    generator, weights = torch.Generator().manual_seed(0), 1 / torch.arange(1, 4001).float()
    lost = {}
    for policy in (MFU({"t": 4000}), StaleUse({"t": 4000})):
        generator.manual_seed(0)
        unsaved, total = torch.zeros(4000), 0.0
        for step in range(400):
            ids = torch.multinomial(weights, 500, replacement=True, generator=generator)
            policy.observe("t", ids)
            unsaved += torch.bincount(ids, minlength=4000)
            if step % 4 == 3:
                rows = policy.select("t", 125)
                policy.saved("t", rows)
                unsaved[rows] = 0
            total += float(unsaved.sum())
        lost[type(policy).__name__] = total
    assert lost["StaleUse"] < 0.8 * lost["MFU"], lost


@given(STEPS)
@settings(max_examples=30, deadline=None)
def test_dirty_rows_are_those_touched_since_saved(steps):
    """Exactly the touched rows are dirty; saved ones are clean until they are touched again."""
    policy, dirty = DirtyRows({"t": ROWS}), set()
    for number, ids in enumerate(steps):
        policy.observe("t", torch.tensor(ids, dtype=torch.int64))
        dirty |= set(ids)
        assert set(policy.select("t", ROWS).tolist()) == dirty
        if number % 2:
            rows = policy.select("t", 5)
            policy.saved("t", rows)
            dirty -= set(rows.tolist())


@given(STEPS, st.sampled_from([0.05, 0.125, 0.5, 1.0]), st.integers(0, 3))
@settings(max_examples=80, deadline=None)
def test_ssu_lists_at_most_r_n_rows_of_every_other_step(steps, fraction, seed):
    """The list holds at most r N rows, each once, all of looked-at steps; while there is room it holds all of them."""
    policy, seen = SSU({"t": ROWS}, fraction=fraction, seed=seed), set()
    room, overflown = max(1, int(ROWS * fraction)), False
    for number, ids in enumerate(steps):
        policy.observe("t", torch.tensor(ids, dtype=torch.int64))
        if number % 2 == 0:
            seen |= set(ids)
        overflown |= len(seen) > room
        listed = policy.select("t", ROWS).tolist()
        assert len(listed) == len(set(listed)) <= room
        assert set(listed) <= seen
        if not overflown:
            assert set(listed) == seen
        if number == 3:
            rows = policy.select("t", 3)
            policy.saved("t", rows)
            seen -= set(rows.tolist())
            overflown |= len(listed) == room
            assert set(policy.select("t", ROWS).tolist()) == set(listed) - set(rows.tolist())


def test_ssu_keeps_rows_in_proportion_to_their_use():
    """Of rows used ten times as often far more stay listed: a full list drops at random and takes new ones in."""
    policy = SSU({"t": 10_000}, fraction=0.05, seed=3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(400):
        hot = torch.randint(500, (50,), generator=generator)
        cold = torch.randint(500, 10_000, (50,), generator=generator)
        policy.observe("t", torch.cat([hot, cold]))
    listed = policy.select("t", 10_000)
    assert listed.numel() == 500
    assert int((listed < 500).sum()) > 3 * 500 * (500 / 10_000)


def test_memory_is_as_the_paper_says():
    """SCAR a copy, MFU and Adagrad-change 4 bytes a row, stale use 8, dirty rows 1, SSU in proportion to r N."""
    rows, dim = 40_000, 16
    momentum = {"momentum1": torch.zeros(rows)}
    views = {
        "t": TableView(name="t", weight=torch.zeros(rows, dim), optimizer=momentum, first_row=0, num_rows_total=rows)
    }
    assert make("SCAR", views).num_bytes == rows * dim * 4
    assert make("MFU", views).num_bytes == rows * 4
    assert make("AdagradChange", views).num_bytes == rows * 4
    assert make("DirtyRows", views).num_bytes == rows
    assert make("StaleUse", views).num_bytes == rows * 8
    assert make("SSU", views).num_bytes <= 20 * 0.125 * rows < make("MFU", views).num_bytes
    assert SSU({"t": rows}, fraction=0.0125).num_bytes <= 20 * 0.0125 * rows


@pytest.mark.parametrize("name", NAMES)
def test_policy_goes_on_after_a_restore(tmp_path, name):
    """Counters travel in a checkpoint: after a restore in another process the same rows are chosen from then on."""
    store, views = make_store(tmp_path), make_views()
    policy = make(name, views)
    use(policy, views, "users", [1, 1, 2, 3, 3, 3])
    use(policy, views, "items", [5])
    rows = priority_rows(policy, views, fraction=0.02, large=("users", "items"))
    store.save(request(views, 1, dense=policy.state_tensors(), extra=policy.state_dict()))  # all rows: a base
    for table, chosen in rows.items():
        policy.saved(table, chosen)
    use(policy, views, "users", [7, 7, 8])
    rows = priority_rows(policy, views, fraction=0.02, large=("users", "items"))
    for table, chosen in rows.items():
        policy.saved(table, chosen)
    state = {"dense": policy.state_tensors(), "extra": policy.state_dict()}
    store.save(request(views, 2, rows=rows, **state))

    found = make_views(seed=9)
    again = make(name, found)
    restored = store.restore(found)
    again.load_state_dict(restored.extra, restored.dense)
    original = views, policy
    if name in ("SCAR", "AdagradChange", "DirtyRows"):  # nothing differs from what is saved after a restore
        assert again.select("users", 97).tolist() == again.select("items", 40).tolist() == []
        original = make_views(seed=9), None
        store.restore(original[0])
        original = original[0], make(name, original[0])
    for number, ids in enumerate(([4, 4, 9], [4, 1, 1, 1], [60])):
        use(again, found, "users", ids)
        use(original[1], original[0], "users", ids)
        assert torch.equal(again.select("users", 5), original[1].select("users", 5)), number


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_a_failed_save_are_chosen_again(name):
    """After `unsaved` the rows of a save that failed come first again."""
    views = table()
    policy = make(name, views)
    use(policy, views, "t", [3, 3, 4, 4])
    rows = policy.select("t", 2)
    assert rows.tolist() == [3, 4]
    policy.saved("t", rows)
    assert policy.select("t", 2).tolist() == []
    policy.unsaved("t", rows)
    assert policy.select("t", 2).tolist() == [3, 4]


@pytest.mark.parametrize("name", NAMES)
def test_untracked_tables_are_ignored_and_foreign_states_refused(name):
    """IDs of other tables change nothing; the state of another policy, size or set of tables is an error."""
    views = table()
    policy = make(name, views)
    policy.observe("small", torch.tensor([1]))
    policy.saved("small", torch.tensor([1]))
    policy.unsaved("small", torch.tensor([1]))
    assert policy.select("t", 9).tolist() == []
    with pytest.raises(StateError, match="expected a state of policy"):
        policy.load_state_dict({**policy.state_dict(), "policy": "LRU"}, policy.state_tensors())
    with pytest.raises(StateError, match="version"):
        policy.load_state_dict({**policy.state_dict(), "version": 9}, policy.state_tensors())
    if policy.state_tensors():
        with pytest.raises(StateError, match="expected tensors"):
            policy.load_state_dict(policy.state_dict(), {})
        other = {key: torch.zeros(ROWS + 1, dtype=tensor.dtype) for key, tensor in policy.state_tensors().items()}
        with pytest.raises(StateError, match="expected"):
            policy.load_state_dict(policy.state_dict(), other)


def test_large_tables_are_the_fewest_that_hold_the_share():
    """Criteo Kaggle's 26 cardinalities: 7 tables hold 99 % of the rows and more, 6 do not."""
    kaggle = (
        *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992),
        *(5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
    )
    num_rows = {f"c{i}": rows for i, rows in enumerate(kaggle)}
    chosen = large_tables(num_rows, share=0.995)
    assert len(chosen) == 7 or sum(num_rows[c] for c in chosen) >= 0.995 * sum(kaggle)
    held = sum(num_rows[table] for table in chosen)
    assert held >= 0.995 * sum(kaggle) > held - min(num_rows[table] for table in chosen)
    assert large_tables({"a": 0, "b": 5}) == ("b",)


def test_priority_rows_take_r_of_large_tables_and_small_ones_whole():
    """At most r of each large table's rows, at least one; every row of the small ones; ranges keep global numbers."""
    views = make_views(part=(1, 2))
    policy = make("MFU", views)
    policy.observe("users", torch.arange(49, 97))
    rows = priority_rows(policy, views, fraction=0.125, large=("users",))
    assert rows["users"].numel() == int(0.125 * 48)
    assert rows["users"].min() >= 49
    assert rows["items"].tolist() == list(range(20, 40))
    assert rows["tiny"].tolist() == [2]
