"""What the mechanisms of privacy are asked for, in every environment."""

NUMBERS = 24  # in an update
EPSILON, DELTA, CLIP = 2.0, 1e-5, 1.0
MULTIPLIER, AGENTS = 3.0, 4  # of means: noise in clips, and how many updates
