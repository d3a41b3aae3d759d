"""Configuration of Sphinx. ``python -m docs`` uses it; nothing here may load anything from a network."""

import os
import sys
from importlib.metadata import version as version_of
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DRAFT = bool(os.environ.get("ZOO_SITE_DRAFT"))
sys.path.insert(0, str(ROOT))  # for docs.site, in processes of Sphinx too

project = "zoo"
copyright = "the authors of zoo, Apache-2.0"  # Sphinx's name for it
version = release = version_of("zoo-transformers")
language = "en"
root_doc = "index"
exclude_patterns = ["docs/gallery", "docs/site"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_gallery.gen_gallery"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_block"]

autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_typehints = "signature"
suppress_warnings = ["ref.python"]  # a type in a signature whose name several modules have
python_maximum_signature_line_length = 100
napoleon_numpy_docstring = False

sphinx_gallery_conf = {
    "examples_dirs": str(ROOT / "docs" / "gallery"),
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py",
    "ignore_pattern": r"__init__\.py",
    "plot_gallery": not DRAFT,
    "abort_on_example_error": False,
    "within_subsection_order": "docs.site.pictures.ReadingOrder",
    "image_scrapers": ("docs.site.pictures.last_image", "matplotlib"),
    "capture_repr": (),
    "reset_modules": ("matplotlib", "docs.site.pictures.reset"),
    "first_notebook_cell": "# Needs zoo: pip install -e . in a copy of its repository",
    "show_signature": False,
    "write_computation_times": False,
    "download_all_examples": False,
    "default_thumb_file": str(HERE / "static" / "text.png"),
    "remove_config_comments": True,
}

html_theme = "furo"
html_title = "zoo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_theme_options = {"top_of_page_buttons": [], "footer_icons": []}
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_show_search_summary = False  # a page on a disk may not read other pages, and would log an error for each result
pygments_style = "default"
pygments_dark_style = "github-dark"


def setup(app):
    """Called by Sphinx."""
    from docs.site import hooks

    hooks.register(app)
