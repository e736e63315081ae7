"""How is a hyper-parameter written in a file? As `core/describe.py` has it; a list means several values to compare."""

from fedpoint.core.describe import FORMS, Unreadable, fingerprint
from fedpoint.core.describe import rebuild as value_of

__all__ = ["FORMS", "Unreadable", "fingerprint", "value_of"]
