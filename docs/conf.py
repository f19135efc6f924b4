"""Sphinx: the docs are Markdown, built with warnings as errors."""

project = "Recoup"
extensions = ["myst_parser"]
html_theme = "furo"
exclude_patterns = ["_build"]
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing"]
