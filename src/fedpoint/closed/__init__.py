"""What closed forms are made of: affine rounds, streaming regression, linear systems."""
