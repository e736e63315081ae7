"""Figures and pages: what people look at."""
