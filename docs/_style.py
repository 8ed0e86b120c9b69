"""Style of the pictures of the manual, and alternative texts of thumbnails."""

import re

from docutils import nodes
from matplotlib import pyplot

from gamp_attention.extensions.comparison import figures

STYLE = figures.STYLE


def set_style(gallery_conf, fname):
    """Draw pictures in the style of the package; `sphinx_gallery` calls this function before each example."""
    pyplot.rcParams.update(STYLE)


def describe_thumbnails(app, doctree, page):
    """Give thumbnails of the gallery an alternative text with the title of their example; a handler of Sphinx."""
    for image in doctree.findall(nodes.image):
        name = re.search(r"thumb/sphx_glr_(\w+)_thumb", image["uri"])
        if name and not image.get("alt"):
            title = app.env.titles.get(f"auto_gallery/{name[1]}")
            image["alt"] = f"Picture of the example: {title.astext() if title else name[1]}"


class ByNumber:
    """Numerical order of gallery pages, plot_2 before plot_10."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, name):
        return int(name.split("_")[1])

    def __repr__(self):
        return "<ByNumber>"  # Sphinx builds all pages again if this text changes
