"""How often a row is used: dedup factors by formula and as measured.

Source: RecD (arXiv 2211.05239), the analysis of deduplication factors. Differs: the factor of windows.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recoup.jagged.ikjt import InverseKeyedJaggedTensor


def dedup_factor(samples_per_session: float, repeat: float) -> float:
    """Return the expected samples a row: S / (1 + (S - 1)(1 - d)).

    Args:
        samples_per_session: S, samples a session in a batch, >= 1.
        repeat: d, chance that the group stays unchanged from one sample to the next, in [0, 1].
    """
    return samples_per_session / (1 + (samples_per_session - 1) * (1 - repeat))


def window_factor(samples_per_session: float, repeat: float, *, length: float, new_ids: float = 1.0) -> float:
    """Return the expected expanded over stored IDs when a change brings k new ones: S l / (l + k(S-1)(1-d))."""
    changed = (samples_per_session - 1) * (1 - repeat)
    return samples_per_session * length / (length + new_ids * changed)


def measured_factor(ikjt: "InverseKeyedJaggedTensor", group: str) -> float:
    """Return B / U of the group in this batch (1.0 for an empty batch)."""
    rows = ikjt.num_rows(group)
    return ikjt.num_samples / rows if rows else 1.0
