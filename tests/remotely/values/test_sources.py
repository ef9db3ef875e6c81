"""Sending modules as source, and importing them."""

import importlib
import sys
import textwrap
import traceback
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from remotely.errors import RemotelyError
from remotely.values import sources
from remotely.values.sources import Finder, Library, ModuleSource, batch_of


@pytest.fixture(autouse=True)
def restore_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove the modules that a test imports, and its finders."""
    before = dict(sys.modules)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield
    for name in sys.modules.keys() - before.keys():
        del sys.modules[name]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a script."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text))


def held(library: Library) -> dict[str, ModuleSource]:
    """Return the sources in all batches, without a limit."""
    packed = (zlib.decompress(batch.content) for batch in library.batches)
    read = msgspec.msgpack.Decoder(list[ModuleSource]).decode
    return {source.name: source for content in packed for source in read(content)}


def nbytes(library: Library) -> int:
    """Return the size of the sources, without compiled code."""
    return sum(len(source.text or b"") for source in held(library).values())


def arrived(*given: ModuleSource) -> Finder:
    """Return the finder of an actor that was sent these sources."""
    finder = Finder()
    finder.offer(given)
    finder.install(first=True)
    return finder


# --- sending --------------------------------------------------------------------------------------


def test_loaded_modules_are_sent_and_all_files_of_packages(here: Path) -> None:
    write(
        here,
        {
            "one.py": "",
            "unused.py": "",
            "package/__init__.py": "",
            "package/loaded.py": "",
            "package/lazy.py": "LAZY = 1",
            "package/sub/deep.py": "",
            "package/data.json": "",
            "package/not-a-module.py": "",
            "folder/inside.py": "",
            "folder/other.py": "",
        },
    )
    (here / "package" / "sub" / "round").symlink_to(here / "package")
    library = Library()
    library.gather()
    before = held(library)
    for name in ("one", "package.loaded", "folder.inside"):
        importlib.import_module(name)
    library.look()
    new = {name: s for name, s in held(library).items() if name not in before}
    assert {name for name, s in new.items() if s.text is not None} == {
        *("one", "package", "package.loaded", "package.lazy", "package.sub.deep"),
        "folder.inside",
    }
    assert new["package.lazy"].text == b"LAZY = 1"
    assert {name for name, s in new.items() if s.text is None} == {"folder", "package.sub"}
    assert __name__ in before  # pytest rewrites it
    assert before[__name__].by_value


def test_a_module_is_sent_again_only_if_it_was_reloaded(here: Path) -> None:
    write(here, {"one.py": "ONE = 1", "package/__init__.py": "", "package/lazy.py": ""})
    library = Library()
    one = importlib.import_module("one")
    importlib.import_module("package")
    library.gather()
    importlib.import_module("package.lazy")
    write(here, {"one.py": "ONE = 'one'"})
    library.gather()
    assert len(library.batches) == 1
    assert library.whole() == (library.batches[0], [library.batches[0].digest])
    importlib.reload(one)
    library.gather()
    assert len(library.batches) == 2
    assert held(library)["one"].text == b"ONE = 'one'"
    whole, digests = library.whole()
    assert digests == [batch.digest for batch in library.batches]
    sent = sources.unpack(whole.content)
    assert [s.text for s in sent if s.name == "one"] == [b"ONE = 'one'"]
    assert len(sent) == len(held(library))


def test_too_much_source_raises_an_error_that_names_the_largest_module(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library()
    library.gather()
    monkeypatch.setattr(sources, "MAX_BYTES", nbytes(library) + 1000)
    write(here, {"large.py": "#" * 2000})
    importlib.import_module("large")
    for _ in range(2):
        with pytest.raises(RemotelyError, match=r"the largest is large .*install large packages"):
            library.gather()


def test_compiled_code_is_left_out_before_sources(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(here, {"first.py": "ONE = 1\n" * 200, "second.py": "TWO = 2\n" * 200})
    library = Library()
    importlib.import_module("first")
    library.gather()
    assert held(library)["first"].compiled
    monkeypatch.setattr(sources, "MAX_BYTES", nbytes(library) + 2000)
    importlib.import_module("second")
    library.gather()
    found = {s.name: s for s in sources.unpack(library.whole()[0].content)}
    assert {"first", "second"} <= found.keys()
    assert not any(source.compiled for source in found.values())


def test_a_call_with_too_much_source_warns_once_and_leaves_out_the_largest(
    here: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    library = Library()
    library.gather()
    monkeypatch.setattr(sources, "MAX_BYTES", nbytes(library) + 1000)
    write(here, {"large.py": "#" * 2000, "small.py": "", "later.py": ""})
    importlib.import_module("large")
    importlib.import_module("small")
    library.look()
    importlib.import_module("later")
    library.look()
    assert {"small", "later"} <= held(library).keys()
    assert "large" not in held(library)
    assert [r.getMessage() for r in caplog.records if "actors are not sent large (" in r.message]
    assert len(caplog.records) == 1
    with pytest.raises(RemotelyError, match="the largest is large"):
        library.gather()
    monkeypatch.undo()
    monkeypatch.syspath_prepend(here)
    library.gather()
    assert "large" in held(library)


@pytest.mark.parametrize("bound", ["MAX_BYTES", "MAX_FILES"])
def test_only_the_loaded_modules_of_a_large_package_are_sent(
    here: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    library = Library()
    library.gather()
    write(here, {f"package/m{i}.py": "#" * 1000 for i in range(5)})
    write(here, {"package/__init__.py": ""})
    importlib.import_module("package.m1")
    room = nbytes(library) + 3000 if bound == "MAX_BYTES" else 4
    monkeypatch.setattr(sources, bound, room)
    library.gather()
    assert {n for n in held(library) if n.startswith("package")} == {"package", "package.m1"}


def test_a_module_from_an_archive_is_sent(here: Path) -> None:
    with zipfile.ZipFile(here / "app.zip", "w") as archive:
        archive.writestr("zipped/__init__.py", "")
        archive.writestr("zipped/inside.py", "X = 1")
    sys.path.insert(0, str(here / "app.zip"))
    importlib.import_module("zipped.inside")
    library = Library()
    library.gather()
    found = held(library)["zipped.inside"]
    assert found.text == b"X = 1"
    assert found.file.endswith("app.zip/zipped/inside.py")


def test_an_actor_passes_on_the_batches_that_it_received() -> None:
    first, actor = Library(), Library()
    first.gather()
    for batch in first.batches:
        assert actor.add(batch)
        assert not actor.add(batch)
    actor.gather()
    assert actor.batches[: len(first.batches)] == first.batches


BOMB = zlib.compress(msgspec.msgpack.encode([ModuleSource("m", "m.py", b" " * 10_000)]))


@pytest.mark.parametrize("content", [b"", b"garbage", zlib.compress(b"garbage"), BOMB, BOMB[:20]])
def test_a_malformed_or_huge_batch_is_refused(
    monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setattr(sources, "MAX_BYTES", 1000)
    with pytest.raises(RemotelyError, match=r"not the sources of a client|too large or truncated"):
        Library().add(batch_of(content))


# --- importing ------------------------------------------------------------------------------------


def test_a_sent_module_has_the_attributes_of_an_imported_one() -> None:
    arrived(
        ModuleSource("app", "/no/app/__init__.py", b"from .kinds import Kind", ["/no/app"]),
        ModuleSource("app.kinds", "/no/app/kinds.py", b"import threading\nclass Kind: pass\n"),
        ModuleSource("app.parts", path=["/no/app/parts"]),
        ModuleSource("app.parts.one", "/no/app/parts/one.py", b"from .. import kinds\n"),
    )
    app = importlib.import_module("app")
    one = importlib.import_module("app.parts.one")
    assert (app.__file__, app.__package__, list(app.__path__)) == (
        "/no/app/__init__.py",
        "app",
        ["/no/app"],
    )
    assert (one.__file__, one.__package__) == ("/no/app/parts/one.py", "app.parts")
    assert app.Kind is one.kinds.Kind
    assert app.Kind.__module__ == "app.kinds"


def test_a_traceback_shows_the_source_lines_of_a_sent_module() -> None:
    arrived(ModuleSource("app", "/no/app.py", b"def fail():\n    raise KeyError('here')\n"))
    with pytest.raises(KeyError) as raised:
        importlib.import_module("app").fail()
    assert "raise KeyError('here')" in "".join(traceback.format_exception(raised.value))


def test_a_sent_module_has_precedence_over_a_local_file(here: Path) -> None:
    write(here, {"app.py": "WHICH = 'another'"})
    arrived(ModuleSource("app", str(here / "app.py"), b"WHICH = 'sent'"))
    assert importlib.import_module("app").WHICH == "sent"


def test_the_compiled_code_of_a_loaded_module_is_used(here: Path) -> None:
    write(here, {"app.py": "def fail():\n    raise KeyError('x')\n"})
    importlib.import_module("app")
    library = Library()
    library.gather()
    del sys.modules["app"]
    sent = held(library)["app"]
    assert sent.text is not None
    arrived(msgspec.structs.replace(sent, text=b"?" * len(sent.text)))  # does not compile
    app = importlib.import_module("app")
    assert app.fail.__code__.co_filename == str(here / "app.py")


@pytest.mark.parametrize("compiled", [b"", b"of another Python"])
def test_a_module_without_usable_compiled_code_is_compiled_without_writing_a_file(
    here: Path, monkeypatch: pytest.MonkeyPatch, compiled: bytes
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    arrived(ModuleSource("app", str(here / "app.py"), b"X = 1", compiled=compiled))
    assert importlib.import_module("app").X == 1
    assert list(here.iterdir()) == []


def test_resources_of_a_sent_package_are_found_if_its_files_exist(here: Path) -> None:
    write(here, {"app/__init__.py": "", "app/data.txt": "data"})
    arrived(ModuleSource("app", str(here / "app" / "__init__.py"), b"", [str(here / "app")]))
    resources = importlib.import_module("importlib.resources")
    assert resources.files("app").joinpath("data.txt").read_text() == "data"


def test_shipped_files_have_precedence_over_sent_modules(here: Path) -> None:
    write(here, {"lib.py": "WHICH = 'shipped'", "folder/one.py": "WHICH = 'shipped'"})
    finder = arrived(
        ModuleSource("lib", "/no/lib.py", b"WHICH = 'sent'"),
        ModuleSource("folder", path=["/no/folder"]),
        ModuleSource("folder.one", "/no/folder/one.py", b"WHICH = 'sent'"),
        ModuleSource("folder.two", "/no/folder/two.py", b"WHICH = 'sent'"),
    )
    finder.shipped_root = here
    which = [importlib.import_module(n).WHICH for n in ("lib", "folder.one", "folder.two")]
    assert which == ["shipped", "shipped", "sent"]


def test_importing_a_module_that_is_sent_by_value_raises(here: Path) -> None:
    write(here, {"test_app.py": ""})
    arrived(ModuleSource("test_app", by_value=True))
    with pytest.raises(ImportError, match="test_app is sent to actors by value"):
        importlib.import_module("test_app")


def test_an_imported_module_is_not_replaced_by_a_later_source() -> None:
    finder = arrived(ModuleSource("app", "/no/app.py", b"X = 1"))
    assert finder.offer([ModuleSource("app", "/no/app.py", b"X = 2")]) == []
    assert importlib.import_module("app").X == 2
    assert finder.offer([ModuleSource("app", "/no/app.py", b"X = 2")]) == []
    assert finder.offer([ModuleSource("app", "/no/app.py", b"X = 3")]) == ["app"]
    assert importlib.reload(sys.modules["app"]).X == 2


def test_a_module_that_makes_calls_when_it_is_imported_is_named() -> None:
    text = b"from remotely.values import sources as f\nWHO = f.importing()\nimport inner\n"
    inner = b"from remotely.values import sources as f\nf.refuse_while_importing('sings')\n"
    arrived(
        ModuleSource("outer", "/no/outer.py", text), ModuleSource("inner", "/no/inner.py", inner)
    )
    with pytest.raises(RemotelyError, match="the module outer sings when it is imported"):
        importlib.import_module("outer")
    assert sources.importing() == ""


def test_a_batch_is_sent_until_the_actor_acknowledges_it(here: Path) -> None:
    write(here, {"part.py": "x = 1"})
    library = Library()
    importlib.import_module("part")
    library.gather()
    actor = SimpleNamespace(sent=(0, frozenset()))
    (batch,), total = library.unsent_for(actor, life=1, sent=0)
    assert library.unsent_for(actor, life=1, sent=0) == ([batch], total)  # another connection
    library.arrived(actor, 1, batch.digest)
    assert library.unsent_for(actor, life=1, sent=0) == ([], total)
    assert library.unsent_for(actor, life=2, sent=0) == ([batch], total)  # it was restarted
