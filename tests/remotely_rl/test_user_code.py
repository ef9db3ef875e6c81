"""Objects in users' files: errors in these files."""

import sys
from pathlib import Path

import pytest

from remotely_rl import TrainingError
from remotely_rl.user_code import located, named_in

BROKEN = [
    ("x = (1\n", "line 1: SyntaxError: '(' was never closed"),
    ("\nimport troch\n", "line 2: ModuleNotFoundError: No module named 'troch'"),
    ("def f():\n    int('x')\n\nf()\n", "line 2: ValueError: invalid literal"),
    ("import json\n\njson.loads('{')\n", "line 3: JSONDecodeError: Expecting property name"),
    ("assert False\n", "line 1: AssertionError"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    return tmp_path


@pytest.mark.parametrize(("text", "said"), BROKEN)
def test_an_error_in_a_file_is_one_sentence_with_its_line(
    text: str, said: str, folder: Path
) -> None:
    (folder / "broken_file.py").write_text(text)
    with pytest.raises(TrainingError) as raised:
        named_in("--env", "broken_file.py:X")
    assert str(raised.value).startswith(f"broken_file.py, {said}")
    assert raised.value.__cause__ is not None  # for users of Python
    assert "broken_file" not in sys.modules


def test_an_error_in_a_module_that_a_file_imports_names_that_module(folder: Path) -> None:
    (folder / "imports_broken.py").write_text("import broken_module\n")
    (folder / "broken_module.py").write_text("\n1 / 0\n")
    with pytest.raises(TrainingError, match=r"^broken_module\.py, line 2: ZeroDivisionError: div"):
        named_in("--env", "imports_broken.py:X")


def test_a_training_error_in_a_file_stays_as_it_is(folder: Path) -> None:
    text = "import remotely_rl\nraise remotely_rl.TrainingError('not a dataclass')\n"
    (folder / "refused.py").write_text(text)
    with pytest.raises(TrainingError, match=r"^not a dataclass$"):
        named_in("an algorithm", "refused.py:X")


def test_a_missing_package_of_the_extra_is_named_with_its_command(folder: Path) -> None:
    (folder / "needs_extra.py").write_text(
        "raise ModuleNotFoundError('No module', name='gymnasium')\n"
    )
    with pytest.raises(TrainingError, match=r"remotely_rl needs gymnasium.*pip install"):
        named_in("--env", "needs_extra.py:X")


def test_an_error_in_library_code_alone_has_no_place() -> None:
    assert located(ValueError("by mistake")) == "ValueError: by mistake"
