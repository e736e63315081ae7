"""What does a model's file say of it? All that `fedpoint predict` needs; the same at the hub and at a site."""

from __future__ import annotations

import numpy as np

from fedpoint.core.describe import describe_record
from fedpoint.federation.preparation import features
from fedpoint.federation.site_table import SiteTable
from fedpoint.federation.study import Study
from fedpoint.federation.wire import Recipe
from fedpoint.store.statement import versions


def about_model(study: Study, table: SiteTable, setup: Recipe, model: np.ndarray, rounds: int) -> dict[str, object]:
    """The manifest of a model after so many rounds."""
    return {
        "algorithm": describe_record(study.method()),
        "problem": "Logistic" if table.of_classes else "LeastSquares",
        "predicts": "class" if table.of_classes else "number",
        "classes": setup["classes"],
        "intercept": table.intercept,
        "features": int(np.shape(model)[-1]) - table.intercept,
        "columns": [feature.plain() for feature in features(setup["recipe"])],
        "rounds": rounds,
        "seed": study.content["seed"],
        "versions": versions(),
        "repeat": 0,
    }
