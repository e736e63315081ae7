"""Print the lowest versions that pyproject.toml allows for the plain install, and what the tests need."""

import re
import tomllib
from pathlib import Path

TESTS = ("hypothesis", "pytest", "pytest-xdist")


def lowest(requirement):
    """click==8.1 of click>=8.1, and jax==0.10 of jax>=0.10,<0.11.

    >>> lowest("jax>=0.10,<0.11")
    'jax==0.10'
    """
    name, bound = re.match(r"([\w.-]+?)\s*>=\s*([\w.]+)", requirement).groups()
    return f"{name}=={bound}"


if __name__ == "__main__":
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    print("\n".join([*map(lowest, project["dependencies"]), *TESTS]))
