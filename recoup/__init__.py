"""Recoup: train recommendation models from impression logs without repeating work and without losing it."""

__version__ = "0.1.0"
