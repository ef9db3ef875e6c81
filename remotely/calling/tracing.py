"""Spans of calls, for OpenTelemetry: one in the process that makes a call, and one where it runs.

This follows the habits of its instrumentations: spans go to the global tracer provider, the context
travels as the global propagator writes it, and `OTEL_*` variables mean what they mean elsewhere.
Nothing here runs unless a provider is set: an engine is told to trace when it is made, and then its
way to make a call is replaced.  So a call pays nothing for this, and has no byte for it.

The context of a call travels behind the name of its method, as JSON, and only then.
"""

import functools
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from remotely.calling.actor import CalledActor
from remotely.calling.engine import CallEngine
from remotely.engine import Engine
from remotely.protocol.wire import TracedName

log = logging.getLogger("remotely")

_PROVIDER = "OTEL_PYTHON_TRACER_PROVIDER"
_EXPORTER = "OTEL_TRACES_EXPORTER"
_SYSTEM = {"rpc.system": "remotely"}


def is_on() -> bool:
    """Return whether a tracer provider is set in this process, or named by its environment."""
    if "opentelemetry.trace" not in sys.modules and _PROVIDER not in os.environ:
        return False
    try:
        from opentelemetry import trace  # noqa: PLC0415 - an extra
    except ImportError:
        return False
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def begin(engine: Engine) -> Engine:
    """Have an engine trace the calls that it makes from now on, if this process traces, or has been
    given the context of a trace to pass on."""
    if _configure.cache_info().currsize or is_on():
        trace_calls(engine)
    return engine


def trace_calls(engine: Engine) -> None:
    """Have an engine trace the calls that it makes from now on."""
    if isinstance(engine, CallEngine) and "call" not in vars(engine):
        vars(engine)["call"] = functools.partial(_call, engine)
        vars(engine)["prepare"] = functools.partial(_prepare, engine)


def _call(
    engine: CallEngine, remotes: Sequence[Any], method: str, *rest: Any, **more: Any
) -> list[Any]:
    """Do as `CallEngine.call`, within a span that ends with the last of the replies."""
    from opentelemetry.trace import SpanKind, get_tracer, use_span  # noqa: PLC0415 - an extra

    span = get_tracer("remotely").start_span(
        _span_name(remotes, method),
        kind=SpanKind.CLIENT,
        attributes={**_SYSTEM, "rpc.method": method, "remotely.actors": len(remotes)},
    )
    try:
        with use_span(span, record_exception=True):
            futures = CallEngine.call(engine, remotes, _named(method), *rest, **more)
    except BaseException:
        span.end()
        raise
    if not futures:
        span.end()
    left = [len(futures)]
    for future in futures:
        future.then(functools.partial(_on_reply, span, left))
    return futures


def _on_reply(span: Any, left: list[int], future: Any) -> None:
    from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415 - an extra

    outcome = future.outcome()
    if outcome is not None and (error := outcome[1]) is not None:
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, type(error).__name__))
    left[0] -= 1
    if not left[0]:
        span.end()


def _prepare(engine: CallEngine, method: str, *rest: Any, **more: Any) -> Any:
    """Do as `CallEngine.prepare`: the calls of pools belong to the span that is current here."""
    return CallEngine.prepare(engine, _named(method), *rest, **more)


def _named(method: str) -> str:
    from opentelemetry import propagate  # noqa: PLC0415 - an extra

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    if not carrier:
        return method
    return TracedName.of(method, json.dumps(carrier, separators=(",", ":")))


def _span_name(remotes: Sequence[CalledActor], method: str) -> str:
    return f"{remotes[0].name}.{method}" if len(remotes) == 1 else method


@contextmanager
def serving(
    method: str,
    contexts: Sequence[str],
    about: dict[str, str],
    engine: Callable[[], Engine | None],
) -> Iterator[None]:
    """In an actor: run calls of a method within a span each, whose parent is in their context.

    What the method calls in turn belongs to the last of these.
    """
    try:
        from opentelemetry import propagate  # noqa: PLC0415 - an extra
        from opentelemetry.trace import SpanKind, get_tracer  # noqa: PLC0415 - an extra
    except ImportError:  # an actor's Python may lack it, and no call may fail for its trace
        _say_that_it_is_missing()
        yield
        return
    _configure()
    if (own := engine()) is not None:
        trace_calls(own)
    with ExitStack() as spans:
        for context in contexts:
            try:
                carrier = json.loads(context)
            except ValueError:  # of another version, as is the next
                continue
            if not isinstance(carrier, dict):
                continue
            spans.enter_context(
                get_tracer("remotely").start_as_current_span(
                    f"{about.get('remotely.actor', '')}.{method}",
                    context=propagate.extract(carrier),
                    kind=SpanKind.SERVER,
                    attributes={**_SYSTEM, **about, "rpc.method": method},
                )
            )
        yield


@functools.cache
def _say_that_it_is_missing() -> None:
    log.warning(
        "calls of this actor are traced by their callers, but it has no spans of them: its Python "
        "has no OpenTelemetry. Install remotely[otel] there"
    )


@functools.cache
def _configure() -> None:
    """Set up the SDK by its environment, as `opentelemetry-instrument` does for a script."""
    if is_on() or os.environ.get(_EXPORTER, "") in ("", "none"):
        return
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow to import

    for each in entry_points(group="opentelemetry_configurator"):
        try:
            each.load()().configure()
        except Exception as error:  # no call may fail for its trace
            log.warning("the spans of this actor are lost: %s: %s", type(error).__name__, error)
        break
    else:
        log.warning(
            "the spans of this actor are lost: %s is set, but no package here sets up the SDK by "
            "its environment, as opentelemetry-distro does",
            _EXPORTER,
        )
