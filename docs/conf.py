"""Sphinx configuration."""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from sphinxcontrib.bibtex.plugin import register_plugin
from sphinxcontrib.bibtex.style.referencing import BracketStyle
from sphinxcontrib.bibtex.style.referencing.author_year import AuthorYearReferenceStyle

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]  # the checkout, whose compiled kernels tests have left on disk

import _command_line
import _docstrings
import _equations
import _notebooks
import _numbers
import _paper
import _project
import _results
import _style
import _symbols
import _terms

import gamp_attention

os.environ.setdefault("DASK_LOGGING__DISTRIBUTED", "warning")

project = "gamp_attention"
author = "The gamp_attention developers"
copyright = "2026, the gamp_attention developers"
release = version = gamp_attention.__version__
repository = _project.read_repository()

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",
    "matplotlib.sphinxext.plot_directive",
    "numpydoc",
    "sphinx_gallery.gen_gallery",
    "sphinxcontrib.bibtex",
]
myst_enable_extensions = ["dollarmath", "amsmath", "substitution"]
myst_heading_anchors = 3
myst_substitutions = _results.build_substitutions() | _paper.build_substitutions()
myst_substitutions |= {"repository": repository, "version": release}
generated = _results.write_pages(HERE / "generated" / "validation").parent
_results.write_changed(generated / "command_line.md", _command_line.build_sections())
_results.write_changed(generated / "equations.md", _equations.build_table())

bibtex_bibfiles = ["references.bib"]
bibtex_default_style = "plain"
bibtex_reference_style = "author_year_round"

autosummary_generate = True
autosummary_ignore_module_all = False
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
autodoc_typehints = "none"
sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "within_subsection_order": "_style.ByNumber",
    "doc_module": ("gamp_attention",),
    "reference_url": {"gamp_attention": None},
    "backreferences_dir": "generated/examples",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_signature": False,
    "capture_repr": (),
    "min_reported_time": 1e9,
    "write_computation_times": False,
    "reset_modules": ("matplotlib", "_style.set_style", "_gallery.hide_checkout"),
}

plot_formats = [("png", 150)]
plot_html_show_formats = plot_html_show_source_link = False
plot_rcparams = _style.STYLE
plot_apply_rcparams = True

numfig = True  # equations of the first page of theory are (1.1), …, and of the second (2.1), …, apart from the paper's
nitpicky = True
templates_path = ["_templates"]
html_theme = "furo"
html_title = project
html_theme_options = {"source_repository": repository, "source_branch": _project.BRANCH, "source_directory": "docs/"}
html_context = {"repository": repository}
html_sidebars = {"**": [f"sidebar/{part}.html" for part in ("brand", "search", "scroll-start", "navigation",
                                                          "scroll-end", "versions")]}  # fmt: skip
html_static_path = ["_static"]
html_css_files = ["manual.css"]
html_js_files = ["pictures.js"]
exclude_patterns = ["_build", "generated/*.md", "generated/examples", "gallery", "examples"]


def _round_brackets():
    return BracketStyle(left="(", right=")")


@dataclass
class RoundReferenceStyle(AuthorYearReferenceStyle):
    """Citations as in docstrings: Rangan (2011) in a sentence, (Rangan, 2011) after it."""

    bracket_parenthetical: BracketStyle = field(default_factory=_round_brackets)
    bracket_textual: BracketStyle = field(default_factory=_round_brackets)


register_plugin("sphinxcontrib.bibtex.style.referencing", "author_year_round", RoundReferenceStyle)


def _skip(app, what, name, thing, skip, options):
    """Fields of NamedTuples are described with their class; what scikit-learn adds to classes, in its own manual."""
    if name in ("loss_class", "check_labels", "check_sizes"):  # set at registration, for the package
        return True
    return True if type(thing).__name__ == "_tuplegetter" or name.endswith("_request") else None


def setup(app):
    """Connect the functions that lay out docstrings, set symbols, link terms and sources, and clean up notebooks."""
    app.connect("autodoc-skip-member", _skip)
    app.connect("autodoc-process-docstring", _docstrings.layout_docstring, priority=400)  # before numpydoc
    app.connect("env-get-updated", _numbers.continue_numbers, priority=900)
    app.connect("html-page-context", _project.link_page)
    app.connect("doctree-resolved", _style.describe_thumbnails)
    app.add_transform(_terms.LinkTerms)
    app.add_transform(_symbols.TypesetSymbols)
    app.connect("builder-inited", _notebooks.replace_roles, priority=900)
