"""How is a hyper-parameter written in a file? As `core/describe.py` has it; a list means several values to compare."""

from fedpoint.core.describe import INLINE, Unreadable, fingerprint, plain, value_of

__all__ = ["INLINE", "Unreadable", "fingerprint", "plain", "value_of"]
