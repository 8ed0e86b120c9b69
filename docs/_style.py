"""Style of the pictures of the manual."""

from matplotlib import pyplot

from gamp_attention.experiments import figures

STYLE = figures.STYLE


def set_style(gallery_conf, fname):
    """Draw pictures in the style of the package; `sphinx_gallery` calls this function before each example."""
    pyplot.rcParams.update(STYLE)


class ByNumber:
    """Numerical order of gallery pages, plot_2 before plot_10."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, name):
        return int(name.split("_")[1])

    def __repr__(self):
        return "<ByNumber>"  # Sphinx builds all pages again if this text changes
