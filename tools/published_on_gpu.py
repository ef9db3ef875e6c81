"""Published parameters of a model on a GPU: what arrives, and how long a version takes.

    python -m tools.published_on_gpu

Needs a GPU, and exits with 1 without one.
"""

import statistics
import sys
import time

import torch
from torch import nn

import remotely

ROUNDS = 20


@remotely.remote_class(cpus=0)
class Reader:
    """Reads without a GPU, which is hidden from it."""

    def read(self, params: "remotely.Published[dict[str, torch.Tensor]]") -> tuple[float, str]:
        tensor = params.latest().value["0.weight"]
        return float(tensor.double().sum()), tensor.device.type


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("there is no GPU here")
    first, copied = nn.Linear(4096, 4096), nn.Linear(4096, 4096)
    model = nn.Sequential(first, nn.Linear(4096, 4096)).cuda()
    params = remotely.Published(model.state_dict())
    expected = float(first.weight.double().sum())
    total, device = Reader().read(params)
    assert device == "cpu"
    assert abs(total - expected) <= 1e-6 * max(1.0, abs(expected)), (total, expected)

    other = nn.Sequential(copied, nn.Linear(4096, 4096)).cuda()
    params.latest(into=other)
    assert torch.equal(copied.weight, first.weight)

    nbytes = sum(part.nbytes for part in model.state_dict().values())
    for name, run in (
        ("set", lambda: params.set(model.state_dict())),
        ("latest(into=model)", lambda: params.latest(into=other)),
        ("copy to the host", lambda: [part.cpu() for part in model.state_dict().values()]),
    ):
        seconds = []
        for _ in range(ROUNDS):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            run()
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begun)
        median = statistics.median(seconds)
        print(f"{name}: {median * 1e3:.2f} ms, {nbytes / median / 1e9:.1f} GB/s")


if __name__ == "__main__":
    main()
