"""The Arrow form of a log: one row = one sample, columns in the schema's canonical order."""

import pyarrow as pa

from recoup.schema.features import Schema, weights_column


def key_type(schema: Schema) -> pa.DataType:
    """Return the Arrow type of the session key."""
    return pa.int64() if schema.key_type == "int64" else pa.string()


def sample_schema(schema: Schema) -> pa.Schema:
    """Return the Arrow schema that every log source yields for `schema`.

    Key int64 or string; time int64; event id string; labels and dense float32;
    sparse list<int64>; weights list<float32>.
    """
    fields = [pa.field(schema.key, key_type(schema), nullable=False), pa.field(schema.time, pa.int64(), nullable=False)]
    if schema.event_id:
        fields.append(pa.field(schema.event_id, pa.string(), nullable=False))
    fields += [pa.field(name, pa.float32(), nullable=False) for name in (*schema.labels, *schema.dense_names)]
    fields += [
        pa.field(name, pa.list_(pa.field("item", pa.int64(), nullable=False)), nullable=False)
        for name in schema.sparse_names
    ]
    item = pa.field("item", pa.float32(), nullable=False)
    fields += [pa.field(weights_column(f.name), pa.list_(item), nullable=False) for f in schema.sparse if f.weighted]
    return pa.schema(fields)
