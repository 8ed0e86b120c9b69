"""Sphinx configuration."""

import gamp_attention

project = "gamp_attention"
author = "The gamp_attention developers"
copyright = "2026, the gamp_attention developers"
release = version = gamp_attention.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",
    "numpydoc",
]
myst_enable_extensions = ["dollarmath", "amsmath"]
autosummary_generate = True
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
autodoc_typehints = "none"
html_theme = "furo"
html_static_path = ["_static"]
exclude_patterns = ["_build"]
nitpicky = False
