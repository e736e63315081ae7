"""What does a run tell of one agent, and does a mechanism hide what it claims to hide?"""

from fedpoint.privacy.certificate import PrivacyCertificate
from fedpoint.privacy.certify import certify
from fedpoint.privacy.spent import Spent, multiplier, spent
from fedpoint.privacy.target import Privacy

__all__ = ["Privacy", "PrivacyCertificate", "Spent", "certify", "multiplier", "spent"]
