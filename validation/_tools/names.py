"""All public names of the package and of its subpackages."""

from importlib import import_module

import gamp_attention as ga

ROOMS = {room: import_module(f"{ga.__name__}.{room}").__all__ for room in ga._ROOMS}
EVERY = sorted({*ga.__all__, *(name for names in ROOMS.values() for name in names)} - {"__version__"})
PUBLIC = sorted({*EVERY, "__version__"} - {*ga._ESTIMATORS})  # without the estimators, which need scikit-learn
