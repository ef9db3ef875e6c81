"""What simulations learn: pictures of ten kinds, by a small network.

MNIST's files, or those of a set of the same make such as Fashion-MNIST, from a folder of the
user's or where Debian's package `dataset-fashion-mnist` puts them.
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
    """Pictures [N, pixels] from 0 to 1, and what they show [N]; for training and for a look."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor


def load(folder: str | Path | None = None) -> Pictures:
    """Reads MNIST's four files, packed with gzip or not, from a folder.

    Raises SyncError if one is missing or is not what its name says.
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
    """Inputs, one hidden layer with ReLU, ten outputs.

    `init` is torch's own, or `normal`: weights from N(0, 1), unscaled, and no biases, as the
    FASGD paper's code begins.
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
    """The gradient of a batch of pictures, in an order of its own, whoever asks.

    As in the FASGD paper: which batch comes next depends on the iteration, not on the client.
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
    def watch(self, parameters: Tensor) -> dict[str, float]:
        """Loss and accuracy on the pictures that are not trained on."""
        self.flat.load(parameters)
        scores = self.flat.module(self.pictures.x_test)
        loss = nn.functional.cross_entropy(scores, self.pictures.y_test)
        right = scores.argmax(-1) == self.pictures.y_test
        return {"loss": float(loss), "accuracy": float(right.float().mean())}
