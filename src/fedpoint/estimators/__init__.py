"""Federated learning for whoever knows scikit-learn: `fit(X, y, groups=...)`, groups saying whose row it is."""

from fedpoint.data.preprocess import FederatedEncoder, FederatedScaler
from fedpoint.estimators.base import OneAgentWarning
from fedpoint.estimators.choose import PlanNotice
from fedpoint.estimators.convergence import Distance
from fedpoint.estimators.federated import FederatedClassifier, FederatedRegressor
from fedpoint.estimators.forecast import FitForecast
from fedpoint.estimators.glm import FederatedGLM
from fedpoint.estimators.history import History
from fedpoint.estimators.networks import MeanModelWarning, NetworkClassifier, NetworkRegressor

__all__ = [
    "Distance",
    "FederatedClassifier",
    "FederatedEncoder",
    "FederatedGLM",
    "FederatedRegressor",
    "FederatedScaler",
    "FitForecast",
    "History",
    "MeanModelWarning",
    "NetworkClassifier",
    "NetworkRegressor",
    "OneAgentWarning",
    "PlanNotice",
]
