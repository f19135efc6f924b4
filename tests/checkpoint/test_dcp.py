"""Exchange with torch's distributed checkpoint: out and back is the identity; foreign names, ranges, misfits."""

import pytest
import torch
import torch.distributed.checkpoint as dcp

from recoup.checkpoint import CheckpointError, NoCheckpointError, TableView
from recoup.checkpoint.dcp import export_dcp, import_dcp
from tests.checkpoint.builders import contents, make_store, make_views, request, same, some_rows, step

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch.*", "ignore::FutureWarning:torch.*")


def test_export_then_import_is_the_identity(tmp_path):
    """Rows, optimizer rows, dense tensors and plain state come back from the exported folder, deltas applied."""
    store, views = make_store(tmp_path / "ours"), make_views()
    store.save(request(views, 1))
    rows = some_rows(1)
    step(views, 1, rows)
    store.save(request(views, 2, rows=rows))
    assert export_dcp(store, tmp_path / "dcp").step == 2
    for part in ((0, 1), (1, 3)):
        found = make_views(seed=9, part=part)
        dense, extra = import_dcp(tmp_path / "dcp", found)
        for name, view in found.items():
            for key, live in view.parts().items():
                whole = views[name].parts()[key]
                assert torch.equal(live, whole[view.first_row : view.first_row + live.shape[0]])
        assert dense["w"].tolist() == [2.0] * 3
        assert int(dense["count"]) == 2
        assert extra == {"at": 2}
    with pytest.raises(CheckpointError, match=r"expected no folder '.*dcp' to export to, got one"):
        export_dcp(store, tmp_path / "dcp")
    with pytest.raises(NoCheckpointError):
        export_dcp(make_store(tmp_path / "nothing"), tmp_path / "other")


def test_foreign_checkpoint_is_imported_by_its_names(tmp_path):
    """Tables of another program's folder are read under its names; a missing name or another shape changes nothing."""
    weight, momentum = torch.randn(9, 2), torch.rand(9)
    dcp.save({"ebc.t.weight": weight, "opt.t.momentum1": momentum}, checkpoint_id=tmp_path / "theirs", no_dist=True)

    def view(rows=9):
        state = {"momentum1": torch.zeros(rows)}
        return {
            "t": TableView(name="t", weight=torch.zeros(rows, 2), optimizer=state, first_row=0, num_rows_total=rows)
        }

    names = {"tables.t.weight": "ebc.t.weight", "tables.t.optimizer.momentum1": "opt.t.momentum1"}
    found = view()
    assert import_dcp(tmp_path / "theirs", found, names=names) == ({}, {})
    assert same(found, {"t": {"weight": weight, "optimizer.momentum1": momentum}})
    before = contents(view())
    for wrong, given, words in (
        (view(), {}, "expected a tensor 'tables.t.weight', got none: say its name"),
        (view(8), names, r"expected \[8, 2\] torch.float32, got \[9, 2\]"),
    ):
        with pytest.raises(CheckpointError, match=words):
            import_dcp(tmp_path / "theirs", wrong, names=given)
        assert not wrong["t"].weight.any()
    with pytest.raises(CheckpointError, match="expected a DCP checkpoint in"):
        import_dcp(tmp_path / "nowhere", view())
    assert before["t"]["weight"].shape == (9, 2)
