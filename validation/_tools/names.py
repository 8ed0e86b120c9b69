"""All public names of the package."""

import gamp_attention as ga

EVERY = sorted({*ga.__all__, *ga._ESTIMATORS} - {"__version__"})
PUBLIC = sorted({*EVERY, "__version__"} - {*ga._ESTIMATORS})  # without the estimators, which need scikit-learn
