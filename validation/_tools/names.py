"""All public names of the package and of its subpackages."""

from importlib import import_module

import gamp_attention as ga

SUBPACKAGES = {name: import_module(f"{ga.__name__}.{name}").__all__ for name in ga._SUBPACKAGES}
EVERY = sorted({*ga.__all__, *(name for names in SUBPACKAGES.values() for name in names)} - {"__version__"})
PUBLIC = sorted({*EVERY, "__version__"} - {*ga._ESTIMATORS})  # without the estimators, which need scikit-learn
