"""Puts the examples into the package that is built: in a clone they lie beside its source."""

import os

from setuptools import setup
from setuptools.command.build_py import build_py

EXAMPLES = "examples"


class BuildWithExamples(build_py):
    """Modules, and the examples as files of the package."""

    def run(self):
        super().run()
        if not self.editable_mode:
            for folder, _, names in os.walk(EXAMPLES):
                target = os.path.join(self.build_lib, "fedpoint", folder)
                self.mkpath(target)
                for name in sorted(names):
                    if not name.endswith(".pyc"):
                        self.copy_file(os.path.join(folder, name), os.path.join(target, name))


setup(cmdclass={"build_py": BuildWithExamples})
