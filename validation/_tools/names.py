"""All public names: those of the package itself, and those of its rooms."""

from importlib import import_module

import gamp_attention as ga

ROOMS = {room: import_module(f"{ga.__name__}.{room}").__all__ for room in ga._ROOMS}
EVERY = sorted({*ga.__all__, *(name for names in ROOMS.values() for name in names)} - {"__version__"})
PUBLIC = sorted({*EVERY, "__version__"} - {*ga._ESTIMATORS})  # but for what needs scikit-learn
