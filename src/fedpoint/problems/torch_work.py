"""How does a module of PyTorch answer? Losses, gradients and products with Hessians, on arrays shared with JAX.

Imported only where PyTorch is used. A compiled round calls these functions back, one at a time.
"""

from __future__ import annotations

import copy
import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import jax
import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.data import Dataset, TensorDataset, default_collate

from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted
from fedpoint.core.own_code import calling
from fedpoint.core.types import Data, Function
from fedpoint.problems.stored import stored

Arrays = Mapping[str, Data]  # a model: arrays by name
AT_ONCE = 256  # rows of an exact loss or field that are held at once


class Rows:
    """The rows of all agents, by number: inputs, and the target last. Some are read when they are used.

    data: a torch Dataset, stored rows, or arrays or tensors that lead with the rows.
    """

    def __init__(self, data: Data) -> None:
        self.source, self.dataset, self.tensors = stored(data), None, None
        if self.source is not None:
            self.count = self.source.count
            return
        if isinstance(data, TensorDataset):
            data = data.tensors
        if isinstance(data, Dataset):
            self.dataset, self.count = data, len(data)
            return
        if not isinstance(data, list | tuple):
            raise FedpointError(f"data must be a torch Dataset or arrays (inputs, targets), got {type(data).__name__}")
        self.tensors = [_tensor(i, part) for i, part in enumerate(data)]
        lengths = {len(part) for part in self.tensors}
        if len(self.tensors) < 2 or len(lengths) > 1:
            shapes = ", ".join(str(tuple(part.shape)) for part in self.tensors)
            raise FedpointError(f"data must be arrays (inputs, targets) with one row a sample; got shapes {shapes}")
        self.count = lengths.pop()

    def take(self, index: Tensor) -> Sequence[Tensor]:
        if self.source is not None:
            return [torch.from_numpy(part) for part in jax.tree.leaves(self.source.checked(index.numpy()))]
        if self.tensors is not None:
            return [part[index] for part in self.tensors]
        assert self.dataset is not None
        return default_collate([self.dataset[i] for i in index.tolist()])

    def fingerprint(self) -> str:
        """SHA-256 of the arrays; of stored rows of some; of a Dataset of its kind, its length and its first and last
        rows."""
        if self.source is not None:
            return bytes(self.source.fingerprint()).hex()
        sha = hashlib.sha256()
        parts = self.tensors
        if parts is None:
            sha.update(f"{type(self.dataset).__qualname__} {self.count};".encode())
            parts = list(self.take(torch.tensor([0, self.count - 1])))
        for part in parts:
            sha.update(f"{part.dtype} {tuple(part.shape)};".encode())
            sha.update(part.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return sha.hexdigest()


def _tensor(place: int, part: Data) -> Tensor:
    if isinstance(part, Tensor):
        found = part.detach().cpu()
    else:
        try:
            found = torch.from_numpy(np.ascontiguousarray(part))
        except (TypeError, ValueError) as error:
            raise FedpointError(f"data: array {place} is not one of numbers: {error}") from None
    if not found.ndim:
        raise FedpointError(f"data: array {place} is a number: give arrays with one row a sample")
    if found.is_floating_point() and not bool(torch.isfinite(found).all()):
        raise FedpointError(f"data: array {place} holds NaN or inf: remove or impute it")
    return found


def checked_module(module: Data) -> nn.Module:
    if isinstance(module, type) and issubclass(module, nn.Module):
        raise FedpointError(f"module: {module.__name__} is a class: give an object, {module.__name__}()")
    if not isinstance(module, nn.Module):
        raise FedpointError(f"module must be a torch.nn.Module, got {type(module).__name__}")
    return module


class Work:
    """A module with its loss and rows. Compared by identity: it is a part of a compiled program.

    A sampled field sees the module in the modes in which it was given (dropout, batch normalisation), everything exact
    sees it in evaluation mode.
    """

    def __init__(self, module: nn.Module, loss: Function, rows: Rows) -> None:
        self.module, self.loss, self.rows = copy.deepcopy(module), loss, rows
        self._modes = [(part, part.training) for part in self.module.modules()]
        self._training = True
        self._lock = threading.Lock()  # XLA may call back from several threads, and a module has one mode
        state = self.module.state_dict(keep_vars=True)
        self.learnt = {n: p.detach() for n, p in self.module.named_parameters() if p.requires_grad}
        if not self.learnt:
            raise FedpointError("the module has no parameter that requires a gradient: there is nothing to learn")
        known = {id(p): n for n, p in self.module.named_parameters()}
        self.shared = {name: known[id(p)] for name, p in state.items() if known.get(id(p), name) != name}  # tied
        self.buffers: tuple[str, ...] = ()
        self.fixed = {n: p.detach().clone() for n, p in state.items() if n not in self.learnt and n not in self.shared}
        changed = self._changed_by_training()
        self.buffers = tuple(sorted(changed))
        self.fixed = {n: p for n, p in self.fixed.items() if n not in changed}
        for name, p in self.start().items():
            if p.dtype not in (np.float32, np.float64):
                raise FedpointError(
                    f"the module's {name} is {p.dtype}: give parameters in float32 or float64; for mixed precision use "
                    "torch.autocast in the module's forward"
                )

    def __getstate__(self) -> dict[str, Data]:
        kept = {name: value for name, value in vars(self).items() if name not in ("_lock", "_modes")}
        return {**kept, "modes": [mode for _, mode in self._modes]}

    def __setstate__(self, state: dict[str, Data]) -> None:
        modes = state.pop("modes")
        vars(self).update(state, _lock=threading.Lock())
        self._modes = list(zip(self.module.modules(), modes, strict=True))

    def _changed_by_training(self) -> dict[str, Tensor]:
        """The buffers that a step changes, as they are at the start."""
        names = [n for n, _ in self.module.named_buffers() if n in self.fixed]
        before = {n: self.fixed[n] for n in names}
        own = {n: b.clone() for n, b in before.items()}
        with self._working(True, (0, 1)), torch.no_grad(), calling("the module fails on two rows of the data: it"):
            *inputs, target = self.rows.take(torch.tensor([0, min(1, self.rows.count - 1)]))
            said = functional_call(self.module, {**self.learnt, **own}, tuple(inputs))
            loss = self.loss(said, target)
        if not isinstance(loss, Tensor) or loss.shape != () or not loss.is_floating_point():
            shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise FedpointError(
                f"loss(outputs, targets) must return a number, the mean over the rows of a batch; got {shape}"
            )
        self._check_mean()
        return {n: b for n, b in before.items() if not torch.equal(b, own[n])}

    def _check_mean(self) -> None:
        """Refuse a loss that is a sum over the rows of a batch: of m copies of the same rows it is m S + r, S not 0."""
        two = torch.tensor([0, self.rows.count - 1])
        with self._working(False), torch.no_grad():
            once, twice, thrice = (float(self._mean_loss(dict(self.learnt), two.repeat(m))) for m in (1, 2, 3))
        grown, size = twice - once, max(abs(once), abs(thrice))
        if abs(grown) > 1e-3 * size and abs(thrice - twice - grown) <= 1e-3 * size:
            raise FedpointError(
                f"loss(outputs, targets) is a sum over the rows of the batch: the same rows twice give {twice:.6g} "
                f"instead of {once:.6g}. It must be a mean, because agents have different numbers of rows: take "
                'reduction="mean"'
            )

    # Models: arrays by name here, a state_dict to the user.

    def start(self) -> dict[str, np.ndarray]:
        state = self.module.state_dict()
        kind = next(iter(self.learnt.values())).dtype  # counts of batches are numbers like any other
        averaged = {n: state[n].to(state[n].dtype if state[n].is_floating_point() else kind) for n in self.buffers}
        return {n: p.detach().cpu().numpy().copy() for n, p in {**self.learnt, **averaged}.items()}

    def state_dict(self, w: Arrays) -> dict[str, Tensor]:
        """What `load_state_dict` takes; arrays may lead with an axis."""
        state, found = self.module.state_dict(), {}
        for name in state:
            source = self.shared.get(name, name)
            given = torch.from_numpy(np.array(w[source])) if source in w else self.fixed[source].clone()
            found[name] = given if state[name].is_floating_point() else given.round().to(state[name].dtype)
        return found

    def arrays(self, state: Mapping[str, Data]) -> dict[str, np.ndarray]:
        """A model of a state_dict, or of arrays by name."""
        names = [*self.learnt, *self.buffers]
        lost = [name for name in names if name not in state]
        if lost:
            raise FedpointError(f"the state_dict lacks {', '.join(lost[:3])}")
        like = self.start()
        return {
            n: np.asarray(state[n].detach().cpu() if isinstance(state[n], Tensor) else state[n], like[n].dtype)
            for n in names
        }

    # Answers: each is called back by a compiled program, with arrays of JAX.

    def gradient(self, w: Arrays, at: Data, weight: Data, luck: Data) -> dict[str, np.ndarray]:
        """The field of a sampled batch: of parameters the weighted gradient, of statistics s - s'."""
        with self._working(True, luck):
            index, total = self._inside(at, weight)
            model = self._model(w, True)
            before = {n: model[n].clone() for n in self.buffers}
            grads = self._gradients(total * self._mean_loss(model, index), model)
            moved = {n: (before[n] - model[n]).to(_tensor_of(w[n]).dtype) for n in self.buffers}
        return _numpy({**grads, **moved})

    def exact_gradient(self, w: Arrays, at: Data, weight: Data) -> dict[str, np.ndarray]:
        """The same without luck; statistics stay where they are."""
        with self._working(False):
            model, sums = self._model(w, True), {n: torch.zeros_like(p) for n, p in self._learnt(w).items()}
            for index, part in self._blocks(at, weight):
                grads = self._gradients(part * self._mean_loss(model, index), model)
                for name, grad in grads.items():
                    sums[name] += grad
        return _numpy({**sums, **{n: torch.zeros_like(_tensor_of(w[n])) for n in self.buffers}})

    def hessian_times(self, w: Arrays, v: Arrays, at: Data, weight: Data) -> dict[str, np.ndarray]:
        """The derivative of the exact field along v."""
        with self._working(False):
            model, along = self._model(w, True), self._learnt(v)
            sums = {n: torch.zeros_like(p) for n, p in along.items()}
            names = list(self.learnt)
            for index, part in self._blocks(at, weight):
                first = torch.autograd.grad(
                    part * self._mean_loss(model, index),
                    [model[n] for n in names],
                    create_graph=True,
                    materialize_grads=True,
                )
                slope = sum((g * along[n]).sum() for n, g in zip(names, first, strict=True))
                grads = self._gradients(slope, model) if slope.requires_grad else {}
                for name, grad in grads.items():
                    sums[name] += grad
        return _numpy({**sums, **{n: torch.zeros_like(_tensor_of(w[n])) for n in self.buffers}})

    def exact_loss(self, w: Arrays, at: Data, weight: Data) -> np.ndarray:
        with self._working(False), torch.no_grad():
            model = self._model(w, False)
            values = [part * self._mean_loss(model, index) for index, part in self._blocks(at, weight)]
            return torch.stack(values).sum().numpy()

    def outputs(self, w: Arrays, inputs: Sequence[Tensor]) -> Tensor:
        with self._working(False), torch.no_grad():
            return functional_call(self.module, self._model(w, False), tuple(inputs))

    # How.

    @contextmanager
    def _working(self, training: bool, luck: Data = None) -> Iterator[None]:
        """In this mode, with these random numbers, and alone; PyTorch's own generator is left as it was."""
        with self._lock:
            if training != self._training:
                for part, mode in self._modes:
                    part.training = mode and training
                self._training = training
            generator = torch.default_generator
            before = generator.get_state()
            if luck is not None:
                high, low = (int(word) for word in luck)
                generator.manual_seed((high << 31) ^ low)
            try:
                with torch.enable_grad(), calling("the module or its loss"):
                    yield
            finally:
                generator.set_state(before)

    def _learnt(self, w: Arrays) -> dict[str, Tensor]:
        return {n: _tensor_of(w[n]) for n in self.learnt}

    def _model(self, w: Arrays, differentiated: bool) -> dict[str, Tensor]:
        """What `functional_call` takes. Parameters share the arrays' memory; buffers, which a step writes, do not."""
        own = dict(self.module.named_buffers())
        found = {n: p.detach().requires_grad_(differentiated) for n, p in self._learnt(w).items()}
        for name in self.buffers:
            given = _tensor_of(w[name])
            found[name] = given.round().to(own[name].dtype) if not own[name].is_floating_point() else given.clone()
        return found

    def _mean_loss(self, model: dict[str, Tensor], index: Tensor) -> Tensor:
        *inputs, target = self.rows.take(index)
        return self.loss(functional_call(self.module, model, tuple(inputs)), target)

    def _gradients(self, loss: Tensor, model: Mapping[str, Tensor]) -> dict[str, Tensor]:
        names = list(self.learnt)
        return dict(
            zip(names, torch.autograd.grad(loss, [model[n] for n in names], materialize_grads=True), strict=True)
        )

    def _inside(self, at: Data, weight: Data) -> tuple[Tensor, float]:
        """Which rows count, and how much all of them: each counts the same."""
        weight = np.asarray(weight)
        return torch.from_numpy(np.asarray(at)[weight > 0].astype(np.int64)), float(weight.sum(dtype=float))

    def _blocks(self, at: Data, weight: Data) -> Iterator[tuple[Tensor, float]]:
        index, total = self._inside(at, weight)
        for part in index.split(AT_ONCE):
            yield part, total * len(part) / len(index)


def _tensor_of(array: Data) -> Tensor:
    """A tensor on the array's own memory; of a record, which nobody may write to, a copy."""
    if isinstance(array, jax.Array):
        return torch.from_dlpack(array)
    array = np.asarray(array)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _numpy(tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: tensor.detach().numpy() for name, tensor in tensors.items()}


def rows_of(parts: Sequence[Data]) -> list[Tensor]:
    """Held-out rows as tensors."""
    return [_tensor(i, part) for i, part in enumerate(parts)]


def row_losses(loss: Callable[[Tensor, Tensor], Tensor], said: Tensor, target: Tensor) -> np.ndarray:
    """(n,): the loss of every row."""
    return np.array([float(loss(said[i : i + 1], target[i : i + 1])) for i in range(len(target))])


def hits(said: Tensor, target: Tensor) -> np.ndarray | None:
    """(n,): whether the likeliest class is the right one; None where rows have no class."""
    classes = said.ndim == 2 and target.ndim == 1 and not target.is_floating_point() and said.shape[1] > 1
    return (said.argmax(1) == target).numpy().astype(float) if classes else None


def version() -> str:
    return f"PyTorch {torch.__version__}, {counted(torch.get_num_threads(), 'thread')}"
