"""FedLab imports torchvision for its MNIST and CIFAR sets alone; beside a CPU build of torch the registry's torchvision
does not load (it was compiled with CUDA), so an empty module stands in its place. Nothing here uses it."""

import sys
import types

try:
    import torchvision  # noqa: F401
except (ImportError, RuntimeError):
    for name in [n for n in sys.modules if n.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    empty, transforms = types.ModuleType("torchvision"), types.ModuleType("torchvision.transforms")
    empty.transforms = transforms
    sys.modules |= {"torchvision": empty, "torchvision.transforms": transforms}
