"""Transforms of features: configuration, kernels and the compiled pipeline; all act on unique rows."""
