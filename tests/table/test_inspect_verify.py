"""`inspect` counts what is stored; `verify` finds every contradiction inside intact files."""

import json
import re

import pyarrow as pa
import pytest

from recoup.table import BuildConfig, SessionRule, build_table, open_table, row_schema
from recoup.table.inspect import inspect_table
from recoup.table.verify import verify_table
from recoup.table.writer import TableWriter, WriterConfig
from tests.table.test_files import SCHEMA, build
from tests.table.test_suggest import synthetic


def test_inspect_counts_samples_versions_and_bytes(tmp_path):
    """Factors are samples over versions and IDs over stored IDs, counted from the decoded rows; bytes add up."""
    table = build(tmp_path / "table")
    facts = inspect_table(table)
    rows = [row for batch in table.iter_rows() for row in batch.to_pylist()]
    assert facts.samples == 400
    assert facts.sessions == len({(row["session_key"], row["session_start"]) for row in rows})
    assert facts.longest_session == max(row["num_samples"] for row in rows)
    for group in facts.groups:
        feature = group.features[0]
        versions = sum(len(row[f"{feature}__length"]) for row in rows)
        assert group.measured_factor == pytest.approx(400 / versions)
        stored = sum(len(row[f"{feature}__values"]) for row in rows)
        expanded = sum(row[f"{feature}__length"][v] for row in rows for v in row[f"{group.name}__inverse"])
        assert group.window_factor == pytest.approx(expanded / stored)
    paths = [table.part_path(part.name) for part in table.manifest.parts]
    footers = sum(path.stat().st_size for path in paths) - sum(facts.bytes_by_feature.values())
    assert 0 < footers < 12_000 * len(paths)


def test_formula_and_measurement_agree_on_the_synthetic_log(tmp_path):
    """The dedup factor by formula is the measured one within 10 %, for d = .95, .7 and a shifting .5."""
    build_table(synthetic(8000), tmp_path / "table", BuildConfig())
    for group in inspect_table(open_table(tmp_path / "table")).groups:
        assert group.predicted_factor == pytest.approx(group.measured_factor, rel=0.1)
        assert group.predicted_window_factor == pytest.approx(group.window_factor, rel=0.1)


def rewrite(folder, change):
    """Write the table's rows again after `change(row)` on the first row, with a manifest that fits the new files."""
    table = open_table(folder)
    rows = [row for batch in table.iter_rows() for row in batch.to_pylist()]
    change(rows)
    for part in table.manifest.parts:
        table.part_path(part.name).unlink()
    writer = TableWriter(folder, row_schema(SCHEMA), WriterConfig())
    writer.write(pa.RecordBatch.from_pylist(rows, schema=row_schema(SCHEMA)))
    manifest = json.loads((folder / "manifest.json").read_text())
    part = writer.close()[0]
    manifest["parts"] = [
        {
            name: getattr(part, name)
            for name in ("name", "rows", "samples", "bytes", "checksum", "first_start", "last_start")
        }
        | {"row_groups": [{"rows": g.rows, "samples": g.samples, "bytes": g.bytes} for g in part.row_groups]}
    ]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return open_table(folder)


def longest(rows):
    """Return the row with most samples."""
    return max(rows, key=lambda row: row["num_samples"])


def version_beyond(rows):
    longest(rows)["profile__inverse"][0] = 99


def window_beyond(rows):
    row = longest(rows)
    row["likes__start"][0] = len(row["likes__values"]) + 1


def negative_length(rows):
    longest(rows)["history__length"][-1] = -1


def label_missing(rows):
    longest(rows)["click"].pop()


def item_length_wrong(rows):
    longest(rows)["item__length"][0] += 1


def weight_missing(rows):
    row = max(rows, key=lambda row: len(row["history__weights"]))
    row["history__weights"].pop()


def event_missing(rows):
    longest(rows)["event_id"].pop()


def times_wrong(rows):
    longest(rows)["time"][1:3] = longest(rows)["time"][2:0:-1]


def start_wrong(rows):
    rows[-1]["session_start"] += 1


def order_wrong(rows):
    rows.reverse()


def session_twice(rows):
    rows.insert(1, dict(rows[0]))


def row_lost(rows):
    rows.pop()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (version_beyond, r"inverse of 'profile': expected versions in \[0, \d+\), got 99"),
        (window_beyond, r"'likes': expected a window inside \[0, \d+\)"),
        (negative_length, "'history': expected a window inside"),
        (label_missing, r"'click': expected \d+ entries \(samples\), got \d+"),
        (item_length_wrong, r"'item': expected \d+ IDs \(the sum of its lengths\), got \d+"),
        (weight_missing, r"'history__weights': expected \d+ entries \(IDs\)"),
        (event_missing, r"'event_id': expected \d+ entries \(samples\)"),
        (times_wrong, r"expected times in order, got \d+ before \d+"),
        (start_wrong, r"expected its first sample at the session start \d+, got \d+"),
        (order_wrong, "expected session starts in order"),
        (session_twice, "a session stands twice"),
        (row_lost, r"rows: expected \d+ \(the manifest\), got \d+"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_verify_finds_each_contradiction(tmp_path, change, message):
    """Files whole, checksums right, content wrong: verify says what, where, expected and found."""
    build(tmp_path / "table", sessions=SessionRule())
    table = rewrite(tmp_path / "table", change)
    problems = verify_table(table)
    assert problems
    assert any(re.search(message, problem) for problem in problems), problems


def test_verify_accepts_the_untouched_rewrite(tmp_path):
    """The rewriting itself is no finding."""
    build(tmp_path / "table")
    assert verify_table(rewrite(tmp_path / "table", lambda rows: None)) == []
