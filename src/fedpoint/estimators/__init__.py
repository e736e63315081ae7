"""Federated learning for whoever knows scikit-learn: `fit(X, y, groups=...)`."""
