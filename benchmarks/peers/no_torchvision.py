"""FedLab and fluke import torchvision for their data sets alone; beside a CPU build of torch the registry's torchvision
does not load (it was compiled with CUDA), so modules of empty classes stand in its place. Nothing here uses them."""

import importlib.abc
import importlib.machinery
import sys
import types


class Empty(types.ModuleType):
    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname, path=None, target=None):
        return importlib.machinery.ModuleSpec(fullname, self) if fullname.split(".")[0] == "torchvision" else None

    def create_module(self, spec):
        return Empty(spec.name)

    def exec_module(self, module):
        pass


try:
    import torchvision  # noqa: F401
except (ImportError, RuntimeError):
    for name in [n for n in sys.modules if n.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    sys.meta_path.insert(0, Finder())
