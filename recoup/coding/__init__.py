"""IDs at rest: a hot ID by its place in a short list, any other by itself; needs no table, no log and no engine."""

from recoup.coding.codec import HotCodes, ids_of
from recoup.coding.columns import codes_column, hot_column, read_hot, stored_feature
from recoup.coding.popularity import MAX_HOT, hot_ids

__all__ = ["MAX_HOT", "HotCodes", "codes_column", "hot_column", "hot_ids", "ids_of", "read_hot", "stored_feature"]
