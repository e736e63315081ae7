"""What is the worst that can happen? A method's round on symbolic vectors, and semidefinite programmes made of it."""
