"""The shared strategies draw what they promise."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from recoup.log import conform
from recoup.schema import sample_schema
from tests.strategies import samples, schemas


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_drawn_samples_are_canonical(data):
    """A drawn batch has the schema's Arrow form, distinct times in order, and passes the border check unchanged."""
    schema = data.draw(schemas())
    batch = data.draw(samples(schema))
    assert batch.schema == sample_schema(schema)
    assert np.all(np.diff(batch[schema.time].to_numpy()) > 0)
    assert conform(batch, schema, "drawn").equals(batch)
