"""Live partial recovery on real processes."""

__all__: list[str] = []
