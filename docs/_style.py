"""How the pictures of the gallery look."""

from cycler import cycler
from matplotlib import pyplot

from gamp_attention.experiments.figures import COLOURS, STYLE


def examples(gallery_conf, fname):
    """Examples are drawn like the package's own pictures; `sphinx_gallery` calls this before each."""
    pyplot.rcParams.update(STYLE | {"axes.prop_cycle": cycler(color=list(COLOURS.values()))})
