"""Modules arrive as their sources say, and no others than were sent."""

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
from remotely.values.sources import Finder, Library, Source, batch_of


@pytest.fixture(autouse=True)
def modules_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget what a test imports, and who finds it."""
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


def held(library: Library) -> dict[str, Source]:
    """Return what is in all batches, whatever the limit is."""
    packed = (zlib.decompress(batch.content) for batch in library.batches)
    read = msgspec.msgpack.Decoder(list[Source]).decode
    return {source.name: source for content in packed for source in read(content)}


def nbytes(library: Library) -> int:
    """Return the size of what was sent; what Python has compiled of it can be left out."""
    return sum(len(source.text or b"") for source in held(library).values())


def arrived(*given: Source) -> Finder:
    """Return the finder of an actor that was sent these."""
    finder = Finder()
    finder.offer(given)
    finder.install(first=True)
    return finder


# --- what is sent ---------------------------------------------------------------------------------


def test_what_is_loaded_is_sent_and_of_packages_what_is_not_loaded_too(here: Path) -> None:
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
    assert __name__ in before  # pytest changes it
    assert before[__name__].by_value


def test_nothing_is_sent_twice_but_what_was_reloaded(here: Path) -> None:
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
    whole, stands_for = library.whole()
    assert stands_for == [batch.digest for batch in library.batches]
    sent = sources.unpack(whole.content)
    assert [s.text for s in sent if s.name == "one"] == [b"ONE = 'one'"]
    assert len(sent) == len(held(library))


def test_too_much_source_is_refused_with_the_largest_module_each_time(
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


def test_compiled_forms_are_left_out_before_any_source_is(
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


def test_a_call_is_never_refused_for_too_much_source_but_warns_once_and_leaves_the_largest_out(
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
    with pytest.raises(RemotelyError, match="the largest is large"):  # a constructor is
        library.gather()
    monkeypatch.undo()
    monkeypatch.syspath_prepend(here)
    library.gather()
    assert "large" in held(library)


@pytest.mark.parametrize("bound", ["MAX_BYTES", "MAX_FILES"])
def test_of_a_package_that_is_too_large_only_what_is_loaded_is_sent(
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


def test_an_actor_sends_on_the_very_batches_that_it_was_sent() -> None:
    first, actor = Library(), Library()
    first.gather()
    for batch in first.batches:
        assert actor.add(batch)
        assert not actor.add(batch)
    actor.gather()
    assert actor.batches[: len(first.batches)] == first.batches


def test_a_batch_that_would_fill_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_BYTES", 1000)
    bomb = zlib.compress(msgspec.msgpack.encode([Source("m", "m.py", b" " * 10_000)]))
    with pytest.raises(RemotelyError, match="too large or truncated"):
        Library().add(batch_of(bomb))
    with pytest.raises(RemotelyError, match="too large or truncated"):
        Library().add(batch_of(bomb[:20]))


@pytest.mark.parametrize("content", [b"", b"garbage", zlib.compress(b"garbage")])
def test_what_is_no_batch_is_refused(content: bytes) -> None:
    with pytest.raises(RemotelyError, match=r"not the sources of a client|truncated"):
        Library().add(batch_of(content))


# --- where it arrives -----------------------------------------------------------------------------


def test_a_module_is_imported_as_python_would_have_there() -> None:
    arrived(
        Source("app", "/no/app/__init__.py", b"from .kinds import Kind", ["/no/app"]),
        Source("app.kinds", "/no/app/kinds.py", b"import threading\nclass Kind: pass\n"),
        Source("app.parts", path=["/no/app/parts"]),
        Source("app.parts.one", "/no/app/parts/one.py", b"from .. import kinds\n"),
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


def test_an_error_shows_the_line_of_a_file_that_is_not_there() -> None:
    arrived(Source("app", "/no/app.py", b"def fail():\n    raise KeyError('here')\n"))
    with pytest.raises(KeyError) as raised:
        importlib.import_module("app").fail()
    assert "raise KeyError('here')" in "".join(traceback.format_exception(raised.value))


def test_what_was_sent_goes_before_what_lies_there_under_its_name(here: Path) -> None:
    write(here, {"app.py": "WHICH = 'another'"})
    arrived(Source("app", str(here / "app.py"), b"WHICH = 'sent'"))
    assert importlib.import_module("app").WHICH == "sent"


def test_a_loaded_module_is_not_compiled_anew(here: Path) -> None:
    write(here, {"app.py": "def fail():\n    raise KeyError('x')\n"})
    importlib.import_module("app")
    library = Library()
    library.gather()
    del sys.modules["app"]
    sent = held(library)["app"]
    assert sent.text is not None
    arrived(msgspec.structs.replace(sent, text=b"?" * len(sent.text)))  # which does not compile
    app = importlib.import_module("app")
    assert app.fail.__code__.co_filename == str(here / "app.py")


@pytest.mark.parametrize("compiled", [b"", b"what another Python has compiled"])
def test_a_module_whose_compiled_form_is_of_no_use_is_compiled_and_nothing_is_written(
    here: Path, monkeypatch: pytest.MonkeyPatch, compiled: bytes
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    arrived(Source("app", str(here / "app.py"), b"X = 1", compiled=compiled))
    assert importlib.import_module("app").X == 1
    assert list(here.iterdir()) == []


def test_data_beside_a_module_is_found_where_the_files_are(here: Path) -> None:
    write(here, {"app/__init__.py": "", "app/data.txt": "data"})
    arrived(Source("app", str(here / "app" / "__init__.py"), b"", [str(here / "app")]))
    resources = importlib.import_module("importlib.resources")
    assert resources.files("app").joinpath("data.txt").read_text() == "data"


def test_what_was_shipped_by_name_goes_before_what_was_sent(here: Path) -> None:
    write(here, {"lib.py": "WHICH = 'shipped'", "folder/one.py": "WHICH = 'shipped'"})
    finder = arrived(
        Source("lib", "/no/lib.py", b"WHICH = 'sent'"),
        Source("folder", path=["/no/folder"]),
        Source("folder.one", "/no/folder/one.py", b"WHICH = 'sent'"),
        Source("folder.two", "/no/folder/two.py", b"WHICH = 'sent'"),
    )
    finder.shipped_root = here
    which = [importlib.import_module(n).WHICH for n in ("lib", "folder.one", "folder.two")]
    assert which == ["shipped", "shipped", "sent"]


def test_a_module_that_goes_by_value_is_not_imported_as_a_second_copy(here: Path) -> None:
    write(here, {"test_app.py": ""})
    arrived(Source("test_app", by_value=True))
    with pytest.raises(ImportError, match="test_app is sent to actors by value"):
        importlib.import_module("test_app")


def test_a_module_is_as_it_was_last_sent_until_it_is_imported() -> None:
    finder = arrived(Source("app", "/no/app.py", b"X = 1"))
    assert finder.offer([Source("app", "/no/app.py", b"X = 2")]) == []
    assert importlib.import_module("app").X == 2
    assert finder.offer([Source("app", "/no/app.py", b"X = 2")]) == []
    assert finder.offer([Source("app", "/no/app.py", b"X = 3")]) == ["app"]
    assert importlib.reload(sys.modules["app"]).X == 2


def test_a_module_that_acts_at_import_is_named() -> None:
    text = b"from remotely.values import sources as f\nWHO = f.importing()\nimport inner\n"
    inner = b"from remotely.values import sources as f\nf.refuse_while_importing('sings')\n"
    arrived(Source("outer", "/no/outer.py", text), Source("inner", "/no/inner.py", inner))
    with pytest.raises(RemotelyError, match="the module outer sings when it is imported"):
        importlib.import_module("outer")
    assert sources.importing() == ""


def test_a_batch_is_sent_again_until_the_actor_has_said_that_it_is_there(here: Path) -> None:
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
