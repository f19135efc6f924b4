"""Models on unique rows: deduplicated look-ups over TorchRec, sequence encoders, and the DLRM."""

from recoup.model.attention import padded_attention, window_attention
from recoup.model.checks import check_finite, check_ids, with_missing
from recoup.model.config import AttentionEncoder, DLRMConfig, EmbeddingTable, TargetEncoder
from recoup.model.dlrm import DLRM
from recoup.model.errors import ModelError
from recoup.model.fused import Cutter, fused_lookups
from recoup.model.lint import check_deduplicated
from recoup.model.lookup import EmbeddedRows, Lookup, LookupOutput
from recoup.model.observe import observe_lookups
from recoup.model.sequence import SequenceAttention
from recoup.model.target_attention import TargetAttention
from recoup.model.views import table_views
from recoup.model.wrap import Deduplicated, wrap

__all__ = [
    "Cutter",
    "AttentionEncoder",
    "DLRM",
    "DLRMConfig",
    "Deduplicated",
    "EmbeddedRows",
    "EmbeddingTable",
    "Lookup",
    "LookupOutput",
    "ModelError",
    "SequenceAttention",
    "TargetAttention",
    "TargetEncoder",
    "check_deduplicated",
    "check_finite",
    "check_ids",
    "fused_lookups",
    "observe_lookups",
    "padded_attention",
    "table_views",
    "window_attention",
    "with_missing",
    "wrap",
]
