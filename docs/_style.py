"""How the pictures of the manual look."""

from cycler import cycler
from matplotlib import pyplot

from gamp_attention.experiments import figures

STYLE = figures.STYLE | {"axes.prop_cycle": cycler(color=list(figures.COLOURS.values()))}


def examples(gallery_conf, fname):
    """Examples are drawn like the package's own pictures; `sphinx_gallery` calls this before each."""
    pyplot.rcParams.update(STYLE)
