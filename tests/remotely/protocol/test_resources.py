"""Parsing, arithmetic and formatting of resources."""

from typing import Any

import pytest

from remotely.protocol.resources import Resources, format_bytes, parse_labels, parse_memory

GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (0, 0),
        (512, 512),
        ("512", 512),
        ("512B", 512),
        ("512MB", 512_000_000),
        ("512MiB", 512 << 20),
        ("2GiB", 2 << 30),
        ("2 gib", 2 << 30),
        ("1.5GiB", 3 << 29),
        ("1T", 10**12),
        (" 64kB ", 64_000),
    ],
)
def test_memory_is_parsed_with_or_without_a_unit(text: Any, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1", -1, "2 Gigs", "1e9", "0x10", "2GiB 3MiB", True, None, 1.5, "²GiB"]
)
def test_an_invalid_amount_is_refused_with_an_example(text: Any) -> None:
    with pytest.raises(ValueError, match="512MB"):
        parse_memory(text)


def test_labels_are_sorted_and_unique() -> None:
    assert parse_labels(["zone=a", "ssd", "ssd"]) == ("ssd", "zone=a")
    assert parse_labels("ssd") == ("ssd",)


@pytest.mark.parametrize("label", ["", "a b", "=a", "zone=", "1st", "a=b=c", 5, "x" * 51, "ß"])
def test_an_invalid_label_is_refused_with_examples(label: Any) -> None:
    with pytest.raises(ValueError, match="is not a label: write a name, as 'ssd'"):
        parse_labels([label])


def test_what_asks_for_a_label_fits_where_it_is() -> None:
    asked = Resources(1, labels=("ssd",))
    assert asked.fits(Resources(1, labels=("fast", "ssd")))
    assert not asked.fits(Resources(1))
    assert Resources(1).fits(Resources(1, labels=("ssd",)))
    assert str(asked) == "1 CPU and label ssd"


def test_resources_are_formatted_for_people() -> None:
    assert str(Resources(1, 1, 2 * GIB)) == "1 CPU, 1 GPU and 2 GiB"
    assert str(Resources(0.5)) == "0.5 CPUs"


def test_resources_are_added_and_subtracted_by_name() -> None:
    total = Resources(4, 1, 100, (("license", 2.0),))
    part = Resources(1.5, 0.25, 30, (("disk", 1.0), ("license", 0.5)))
    assert total - part == Resources(2.5, 0.75, 70, (("disk", -1.0), ("license", 1.5)))
    assert total - part + part == total


def test_the_largest_amount_fits_into_a_message() -> None:
    assert parse_memory(1 << 62) == 1 << 62
    assert parse_memory(f"{1 << 22}TiB") == 1 << 62
    with pytest.raises(ValueError, match="not an amount"):
        parse_memory((1 << 62) + 1)
    with pytest.raises(ValueError, match="not an amount"):
        parse_memory(f"{(1 << 22) + 1}TiB")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1 << 10, "1 KiB"),
        (3 << 19, "1.5 MiB"),
        (5 * GIB, "5 GiB"),
        (1 << 40, "1 TiB"),
        (3 << 40, "3 TiB"),
    ],
)
def test_bytes_are_formatted_in_the_largest_unit_that_fits(size: int, text: str) -> None:
    assert format_bytes(size) == text
