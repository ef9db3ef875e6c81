"""Workload of simulations: classification of images into ten classes by a small network.

The images are MNIST, or a data set of the same format such as Fashion-MNIST: from the user's
folder, or from Debian's package `dataset-fashion-mnist`.
"""

import gzip
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from remotely_rl.errors import SyncError
from remotely_rl.sync.flat import Flat

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
HEADERS = {"images": 16, "labels": 8}  # bytes before the data
INITS = ("torch", "normal")


class Pictures(NamedTuple):
    """Images [N, pixels] from 0 to 1, and their classes [N], for training and testing."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor


def load(folder: str | Path | None = None) -> Pictures:
    """Read MNIST's four files, compressed with gzip or not, from a folder.

    Raises SyncError if one is missing or damaged.
    """
    path = DEBIAN if folder is None else Path(folder)
    if not path.is_dir():
        hint = "; apt install dataset-fashion-mnist, or give --data DIR" if folder is None else ""
        raise SyncError(f"there is no folder {path}{hint}")
    parts = []
    for images, labels in FILES.values():
        y = _read(path / labels, HEADERS["labels"])
        x = _read(path / images, HEADERS["images"])
        if len(x) % len(y):
            raise SyncError(f"{path} has {len(y)} labels for {len(x)} pixels")
        parts.append(torch.from_numpy(x.reshape(len(y), -1).astype(np.float32) / 255))
        parts.append(torch.from_numpy(y.astype(np.int64)))
    return Pictures(*parts)


def _read(path: Path, header: int) -> NDArray[np.uint8]:
    packed = path.with_name(f"{path.name}.gz")
    try:
        data = gzip.decompress(packed.read_bytes()) if packed.exists() else path.read_bytes()
    except FileNotFoundError:
        raise SyncError(f"there is no file {path.name} (or .gz) in {path.parent}") from None
    except (gzip.BadGzipFile, EOFError):
        raise SyncError(f"{packed} is damaged: gzip cannot read it") from None
    return np.frombuffer(data, np.uint8, offset=header)


def mlp(inputs: int, hidden: int, init: str, seed: int) -> nn.Module:
    """Make a network with one hidden layer of ReLUs and ten outputs.

    `init` is `torch`, its default, or `normal`: weights from N(0, 1), unscaled, and zero biases, as
    in the code of the FASGD paper.
    """
    if init not in INITS:
        raise SyncError(f"init must be {' or '.join(INITS)}, not {init!r}")
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    if init == "normal":
        for name, parameter in module.named_parameters():
            nn.init.normal_(parameter) if "weight" in name else nn.init.zeros_(parameter)
    return module


class Classification:
    """Gradients of successive batches of images.

    As in the FASGD paper, the batch depends on the iteration, not on the client.
    """

    def __init__(self, pictures: Pictures, module: nn.Module, batch: int, seed: int):
        self.pictures = pictures
        self.flat = Flat(module)
        self.batch = batch
        self._random = torch.Generator().manual_seed(seed)
        self._order = torch.empty(0, dtype=torch.int64)

    def __call__(self, client: int, parameters: Tensor) -> Tensor:
        if len(self._order) < self.batch:
            self._order = torch.randperm(len(self.pictures.y), generator=self._random)
        rows, self._order = self._order[: self.batch], self._order[self.batch :]
        x, y = self.pictures.x[rows], self.pictures.y[rows]
        return self.flat.gradient_at(
            parameters, lambda: nn.functional.cross_entropy(self.flat.module(x), y)
        )

    @torch.no_grad()
    def evaluate(self, parameters: Tensor) -> dict[str, float]:
        """Return loss and accuracy on the test images."""
        self.flat.load(parameters)
        scores = self.flat.module(self.pictures.x_test)
        loss = nn.functional.cross_entropy(scores, self.pictures.y_test)
        right = scores.argmax(-1) == self.pictures.y_test
        return {"loss": float(loss), "accuracy": float(right.float().mean())}
