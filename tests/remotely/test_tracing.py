"""Spans of calls, joined across processes, with OpenTelemetry's SDK."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from remotely.calling import tracing
from remotely.protocol import wire
from remotely.protocol.wire import Kind, TracedName

SCRIPT = """
import json
import remotely
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


def set_up():
    trace.kept_here = exporter = InMemorySpanExporter()  # a global would travel with the classes
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)


def found():
    return [
        (s.name, s.kind.name, f"{s.context.trace_id:x}", f"{s.context.span_id:x}",
         f"{s.parent.span_id:x}" if s.parent else "", s.status.status_code.name)
        for s in trace.kept_here.get_finished_spans()
    ]


class Traced:
    def __init__(self, other=None, on=True):
        self.other = other
        if on:
            set_up()

    def spans(self):
        return found()


@remotely.remote_class(cpus=0.1)
class Plain(Traced):
    def step(self, n):
        if n < 0:
            raise ValueError(n)
        return n

    def relay(self, n):
        return self.other.step(n)


@remotely.remote_class(cpus=0.1)
class Asynchronous(Traced):
    async def step(self, n):
        return n


@remotely.remote_class(cpus=0.1)
class Batched(Traced):
    @remotely.batched(max_size=2, wait_ms=10_000)
    def step(self, ns):
        return ns


if __name__ == "__main__":
    import sys
    if sys.argv[1] == "on":
        set_up()
    inner = Plain()
    outer, passes_on = Plain(inner), Plain(inner, False)
    actors = {"inner": inner, "outer": outer, "async": Asynchronous(), "batched": Batched()}
    if sys.argv[1] == "on":
        with trace.get_tracer("test").start_as_current_span("main"):
            assert outer.relay(1) == 1
            assert passes_on.relay(2) == 2
            assert actors["async"].step(3) == 3
            futures = [actors["batched"].step.submit(n) for n in (4, 5)]
            assert [f.result() for f in futures] == [4, 5]
            try:
                inner.step(-1)
            except ValueError:
                pass
    else:
        assert outer.relay(1) == 1
    result = {name: actor.spans() for name, actor in actors.items()}
    result["script"] = found() if sys.argv[1] == "on" else []
    print(json.dumps(result))
"""


def run(tmp_path: Path, mode: str) -> dict[str, list[dict[str, str]]]:
    file = tmp_path / "traced.py"
    file.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(file), mode], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Failed to detach context" not in done.stderr
    names = ("name", "kind", "trace", "id", "parent", "status")
    spans = json.loads(done.stdout.splitlines()[-1])
    return {
        who: [dict(zip(names, each, strict=True)) for each in its] for who, its in spans.items()
    }


def test_spans_are_joined_across_processes(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry's SDK is not installed")
    spans = run(tmp_path, "on")
    (main,) = [each for each in spans["script"] if each["name"] == "main"]

    def children(parent: dict[str, str], who: str) -> list[dict[str, str]]:
        return [each for each in spans[who] if each["parent"] == parent["id"]]

    calls = children(main, "script")
    assert {each["kind"] for each in calls} == {"CLIENT"}
    assert {each["trace"] for its in spans.values() for each in its if each["parent"]} == {
        main["trace"]
    }
    relay, passed_on, asynchronous, *batched, failing = calls
    (served,) = children(relay, "outer")
    assert (served["name"], served["kind"]) == ("Plain-2.relay", "SERVER")
    (call,) = children(served, "outer")
    (inner,) = children(call, "inner")
    assert inner["name"] == "Plain-1.step"
    # An actor without a provider passes the context on.
    assert [each["name"] for each in children(passed_on, "inner")] == ["Plain-1.step"]
    assert [each["name"] for each in children(asynchronous, "async")] == ["Asynchronous-1.step"]
    assert [len(children(each, "batched")) for each in batched] == [1, 1]
    (failed,) = children(failing, "inner")
    assert failing["status"] == failed["status"] == "ERROR"


def test_without_a_provider_in_the_script_nothing_is_traced(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry's SDK is not installed")
    spans = run(tmp_path, "off")
    assert spans["outer"][0]["kind"] == "CLIENT"  # it has a provider, and has called another
    assert [each["name"] for each in spans["inner"]] == ["Plain-1.step"]
    assert spans["async"] == []


@pytest.mark.parametrize(("exporter", "says"), [("otlp", True), ("none", False)])
def test_an_actor_whose_spans_nothing_sets_up_says_so(
    exporter: str, says: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", exporter)
    monkeypatch.setattr(tracing, "is_on", lambda: False)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: ())
    tracing._configure.__wrapped__()
    assert ("opentelemetry-distro" in caplog.text) == says


@pytest.mark.parametrize("context", ["{}", '{"traceparent":"00-1-2-01"}', "x" * 1000])
def test_a_context_travels_behind_the_name(context: str) -> None:
    name = TracedName.of("step", context)
    assert f"{name}" == "step"
    message: Any = wire.decode(wire.encode(Kind.CALL, 7, name), "client")
    assert (message.name, message.context.rstrip()) == ("step", context)


def test_a_call_without_a_context_has_no_byte_for_it() -> None:
    short, long = "step", "s" * 200
    for name in (short, long):
        frames = wire.encode(Kind.CALL, 7, name)
        assert len(frames[0]) == 16 + len(name)
        message = wire.decode(frames, "client")
        assert (message.name, message.context) == (name, "")


def test_a_traced_call_runs_where_opentelemetry_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("opentelemetry", "opentelemetry.trace"):
        monkeypatch.setitem(sys.modules, name, None)
    ran = []
    for call in (1, 2):
        with tracing.serving("step", ["{}"], {}, lambda: None):
            ran.append(call)
    assert ran == [1, 2]
    assert ["has no OpenTelemetry" in each for each in caplog.messages] == [True]


def test_a_context_that_cannot_be_read_fails_no_call() -> None:
    pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry's SDK is not installed")
    script = """
from remotely.calling import tracing
for context in ("[]", "3", "null", "{", ""):
    with tracing.serving("step", [context], {}, lambda: None):
        print(context)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout.split("\n") == ["[]", "3", "null", "{", "", ""], done.stderr
