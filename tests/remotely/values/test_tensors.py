"""Tensors arrive equal, and are sent out of band as arrays are."""

import warnings
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from remotely.values.codec import Encoded, decode, encode
from remotely.values.picklers import SMALL_BUFFER_BYTES, Way, way_of


def arrived(encoded: Encoded) -> Any:
    """Decode as a receiver does: from buffers in new, writable memory."""
    return decode(encoded.payload, [memoryview(bytearray(b)) for b in encoded.buffers])


def sent(value: object) -> Any:
    return arrived(encode(value))


DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
]


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (2, 3, 5), (150, 200)], ids=str)
def test_a_tensor_arrives_equal_and_private(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.rand(shape) * 9 - 4).to(dtype)
    encoded = encode(tensor)
    assert bool(encoded.buffers) == (tensor.nbytes >= SMALL_BUFFER_BYTES)
    back = arrived(encoded)
    assert type(back) is torch.Tensor
    assert (back.dtype, back.shape) == (dtype, tensor.shape)
    assert tensor_bytes(back) == tensor_bytes(tensor)
    back.zero_()


@pytest.mark.parametrize("size", [2, 32])
def test_a_tensor_that_fills_its_memory_keeps_its_strides(size: int) -> None:
    images = torch.rand(4, 3, size, size)
    filters = torch.nn.Conv2d(size, size, 3)
    torch.nn.Module.to(filters, memory_format=torch.channels_last)  # type: ignore[call-overload]
    for tensor in (
        images.to(memory_format=torch.channels_last),
        torch.rand(2, 3, 4, size, size).to(memory_format=torch.channels_last_3d),
        torch.rand(4, 1, size, size).to(memory_format=torch.channels_last),
        images.permute(1, 2, 3, 0),
        images[:2].transpose(1, 2),
        filters.weight,
        torch.zeros(0, 3, size).permute(2, 0, 1),
    ):
        back = sent(tensor)
        assert torch.equal(back, tensor)
        assert back.stride() == tensor.stride()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.rand(200, 100)[:, ::3],
        torch.rand(1).expand(5000),
        torch.tensor([1 + 2j]).conj(),
        torch.tensor([1 + 2j, 3 + 4j]).conj().imag,  # its sign is a flag, not in its memory
        torch.rand(10**6)[:3],
    ],
    ids=["strided", "expanded", "conjugate", "negative", "slice"],
)
def test_a_view_arrives_as_a_contiguous_tensor_of_its_own(tensor: torch.Tensor) -> None:
    encoded = encode(tensor)
    assert len(encoded.payload) + sum(b.nbytes for b in encoded.buffers) < tensor.nbytes + 1000
    back = arrived(encoded)
    assert back.is_contiguous()
    assert torch.equal(back, tensor)


def test_a_contiguous_tensor_is_not_copied_on_either_side() -> None:
    tensor = torch.rand(5000)
    encoded = encode(tensor)
    assert decode(encoded.payload, encoded.buffers).data_ptr() == tensor.data_ptr()


@pytest.mark.parametrize("size", [3, 5000])
def test_from_read_only_buffers_a_tensor_is_copied_without_a_warning(size: int) -> None:
    tensor = torch.rand(size)
    encoded = encode(tensor)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        back = decode(encoded.payload, [bytes(b) for b in encoded.buffers])
    assert torch.equal(back, tensor)
    back.zero_()


def test_a_tensor_from_a_misaligned_buffer_is_aligned() -> None:
    tensor = torch.rand(5000, dtype=torch.float64)
    encoded = encode(tensor)
    misaligned = memoryview(bytearray(b"x" + bytes(encoded.buffers[0])))[1:]
    back = decode(encoded.payload, [misaligned])
    assert back.data_ptr() % 8 == 0
    assert torch.equal(back, tensor)


def test_requires_grad_is_kept() -> None:
    leaf = torch.rand(3, requires_grad=True)
    frozen = torch.nn.Parameter(torch.rand(3), requires_grad=False)
    result, back, parameter = sent([leaf * 2, leaf, frozen])
    assert result.requires_grad
    assert result.is_leaf
    assert back.requires_grad
    assert type(parameter) is torch.nn.Parameter
    assert not parameter.requires_grad


def test_a_model_arrives_and_computes_the_same() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    encoded = encode(model)
    assert len(encoded.buffers) == 1
    back = arrived(encoded)
    x = torch.rand(5, 64)
    assert torch.equal(back(x), model(x))
    assert all(type(p) is torch.nn.Parameter for p in back.parameters())
    back(x).sum().backward()
    with torch.no_grad():
        back[0].weight -= back[0].weight.grad


def test_tied_weights_stay_tied() -> None:
    first, second = torch.nn.Linear(50, 50), torch.nn.Linear(50, 50)
    second.weight = first.weight
    back = sent([first, second])
    assert back[0].weight is back[1].weight


def test_tensors_that_share_storage_arrive_as_copies() -> None:
    base = torch.zeros(10)
    back = sent([base, base[2:]])
    back[1].fill_(1)
    assert back[0].sum() == 0


def tensor_with_attribute() -> torch.Tensor:
    tensor = torch.rand(3)
    tensor.note = "mine"
    return tensor


@pytest.mark.parametrize(
    "tensor",
    [
        torch.eye(3).to_sparse(),
        torch.empty(3, device="meta"),
        tensor_with_attribute(),
    ],
    ids=["sparse", "meta", "with an attribute"],
)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # torch's own
def test_other_tensors_arrive_as_torch_pickles_them(tensor: torch.Tensor) -> None:
    back = sent(tensor)
    assert (back.layout, back.device, back.dtype) == (tensor.layout, tensor.device, tensor.dtype)
    assert vars(back) == vars(tensor)
    if tensor.device.type == "cpu":
        assert torch.equal(back.to_dense(), tensor.to_dense())


def test_tensors_of_a_closure_are_sent_out_of_band() -> None:
    tensor: torch.Tensor = torch.rand(5000)
    array = np.ones((200, 100))
    encoded = encode(lambda: (tensor, array))
    assert {buffer.nbytes for buffer in encoded.buffers} == {tensor.nbytes, array.nbytes}
    back = arrived(encoded)()
    assert torch.equal(back[0], tensor)
    assert np.array_equal(back[1], array)


def test_torch_is_sent_by_name() -> None:
    assert way_of("torch.nn.modules.linear") is Way.INSTALLED
    assert way_of("torch._C._nn") is Way.INSTALLED  # a module that an installed package creates
    assert sent(torch.nn.Linear) is torch.nn.Linear
