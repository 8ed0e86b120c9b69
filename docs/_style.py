"""How the pictures of the manual look."""

from cycler import cycler
from matplotlib import pyplot

from gamp_attention.experiments import figures

STYLE = figures.STYLE | {"axes.prop_cycle": cycler(color=list(figures.COLOURS.values()))}


def examples(gallery_conf, fname):
    """Examples are drawn like the package's own pictures; `sphinx_gallery` calls this before each."""
    pyplot.rcParams.update(STYLE)


class ByNumber:
    """The order of gallery pages, plot_2 before plot_10."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, name):
        return int(name.split("_")[1])

    def __repr__(self):
        return "<ByNumber>"  # a change of this has pages built anew
