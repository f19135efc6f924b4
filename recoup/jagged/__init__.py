"""IKJT and its kernels."""
