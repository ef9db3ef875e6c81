"""Norms of gradients and of updates, whole and by layer: the metrics of `--metrics norms`.

Stooke and Abbeel 2018, https://arxiv.org/abs/1803.02811, compare them between sizes of batches.

    norms/gradient, norms/update                  of all parameters
    norms/gradient/LAYER, norms/update/LAYER      of a module with parameters of its own

A gradient is measured before `max_grad_norm` clips it, and an update is what an optimizer's step
adds to the parameters; with a shared store it includes what other learners have added meanwhile.
Each metric is a mean over steps.  A step that leaves a layer out counts as 0 there.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

GRADIENT, UPDATE = "norms/gradient", "norms/update"


class Norms:
    """Measures the gradients and the updates of named parameters; `pop` returns the metrics."""

    def __init__(self, parameters: Iterable[tuple[str, Tensor]]):
        named = list(parameters)
        self._parameters = [parameter for _, parameter in named]
        layers = [name.rpartition(".")[0] or name for name, _ in named]
        self._layers = list(dict.fromkeys(layers))
        self._layer_of = torch.tensor([self._layers.index(layer) for layer in layers])
        self._squares: dict[str, list[Tensor]] = {GRADIENT: [], UPDATE: []}
        self._before: list[Tensor] = []
        self.keep()

    def measure_gradient(self) -> None:
        """Measure the gradients that the parameters have."""
        grads = [parameter.grad for parameter in self._parameters]
        self._measure(GRADIENT, [torch.zeros(1) if grad is None else grad for grad in grads])

    def keep(self) -> None:
        """Keep the parameters as they are, to measure the next update from here."""
        self._before = [parameter.detach().clone() for parameter in self._parameters]

    def measure_update(self) -> None:
        """Measure how far the parameters have moved since they were kept, and keep them."""
        pairs = zip(self._parameters, self._before, strict=True)
        self._measure(UPDATE, [parameter.detach() - before for parameter, before in pairs])
        self.keep()

    @contextlib.contextmanager
    def update(self) -> Iterator[None]:
        """Return a context in which an optimizer takes a step, which is measured."""
        self.keep()
        yield
        self.measure_update()

    def pop(self) -> dict[str, float]:
        """Return the mean norms since the last call."""
        metrics: dict[str, float] = {}
        for kind, found in self._squares.items():
            if not found:
                continue
            squares = torch.stack(found)  # [steps, layers]
            metrics[kind] = float(squares.sum(1).sqrt().mean())
            each = squares.sqrt().mean(0).tolist()
            metrics |= {f"{kind}/{name}": of for name, of in zip(self._layers, each, strict=True)}
            found.clear()
        return metrics

    def _measure(self, kind: str, tensors: Sequence[Tensor]) -> None:
        norms = [torch.linalg.vector_norm(tensor.detach()).double().cpu() for tensor in tensors]
        by_layer = torch.zeros(len(self._layers), dtype=torch.float64)
        by_layer.index_add_(0, self._layer_of, torch.stack(norms).square())
        self._squares[kind].append(by_layer)
