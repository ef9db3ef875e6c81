"""Names of other libraries: the tables of docs/coming_from.md, and hints in errors.

Using such a name raises an AttributeError that says what to write here.  The names do not exist:
`hasattr` is false, and a class that defines one of them keeps it.
"""

import inspect
import re
from typing import Any, NamedTuple


class Equivalent(NamedTuple):
    """A name of another library, and its equivalent here; `tried` lists where a hint is given.

    A cell without backticks is code.
    """

    theirs: str
    ours: str
    differs: str = ""
    tried: tuple[str, ...] = ()  # "module.NAME", "class.NAME", "method.NAME", "future.NAME"


_CONNECT = "`remotely.connect()`, or nothing: the first actor starts a cluster on this machine"

TABLES: dict[str, tuple[Equivalent, ...]] = {
    "Ray": (
        Equivalent("ray.init(address)", _CONNECT, "", ("module.init",)),
        Equivalent("@ray.remote class A", "@remotely.remote_class class A", "", ("module.remote",)),
        Equivalent(
            "@ray.remote def f; f.remote(x)",
            "remotely.Executor().submit(f, x)",
            "functions run in a pool, and need no decorator",
        ),
        Equivalent(
            "A.remote(1)", "A(1)", "it waits for the constructor, and raises what that raises",
            ("class.remote",),
        ),
        Equivalent(
            "[A.remote(x) for x in xs]", "remotely.group(A, each=xs)", "at once; all or none"
        ),
        Equivalent(
            "ray.remote(Foo)", "remotely.remote_class(Foo)",
            "a remote subclass: `Foo` itself stays local, as in Ray",
        ),
        Equivalent("A.options(num_cpus=2)", "remotely.options(A, cpus=2)", "", ("class.options",)),
        Equivalent(
            "a.f.remote(x)", "`a.f.submit(x)`", "`a.f(x)` waits for the result",
            ("method.remote",),
        ),
        Equivalent(
            "a.f.options(...)", "remotely.options(A, ...)(...)", "options are an actor's",
            ("method.options",),
        ),
        Equivalent(
            "ray.get(ref)", "`future.result()`, `remotely.get(future)` or `await future`",
            "a result is sent once it is computed; `remotely.ref(future)` leaves it in the store",
        ),
        Equivalent("ray.get([r1, r2])", "[f.result() for f in futures]"),
        Equivalent(
            "ray.wait(refs)",
            "`remotely.as_completed(futures)`, or `concurrent.futures.wait(futures)`",
            "", ("module.wait",),
        ),
        Equivalent("ray.put(x)", "remotely.put(x)", "it arrives as the value"),
        Equivalent("ray.cancel(ref)", "future.cancel()", "", ("module.cancel",)),
        Equivalent("ray.kill(a)", "remotely.kill(a)"),
        Equivalent("ray.get_actor(name)", "remotely.get_actor(name)"),
        Equivalent(
            "`max_concurrency`, `max_task_retries`",
            "`concurrency`, `@remotely.idempotent(retries=2)`",
            "only marked methods are retried",
        ),
        Equivalent("ray.util.ActorPool(actors)", "remotely.Pool(A, 8)", "", ("module.util",)),
        Equivalent("ray.cluster_resources()", "remotely.status().machines", "",
            ("module.cluster_resources", "module.available_resources", "module.nodes")),
        Equivalent(
            "ray.is_initialized()", "remotely.is_connected()", "", ("module.is_initialized",)
        ),
        Equivalent("ray.get_runtime_context()", "remotely.current_actor()", "",
            ("module.get_runtime_context",)),
    ),
    "PARL": (
        Equivalent(
            "parl.connect(addr, distributed_files=[...])",
            'remotely.connect(addr, ship=["data/"])', "your own modules travel by themselves",
            ("connect.distributed_files",),
        ),
        Equivalent(
            "@parl.remote_class(wait=False)", "the same, or `a.f.submit(x)` for a single call",
        ),
        Equivalent("future.get()", "`future.result()`, or `await future`", "", ("future.get",)),
        Equivalent("xparl start --port 8010", "remotely start --port 8010", "each start has keys"),
        Equivalent("xparl connect --address HOST:PORT", "remotely join HOST:PORT --key worker.key"),
        Equivalent("`xparl status`, `xparl stop`", "`remotely status`, `remotely stop`"),
        Equivalent("a.x = 1", "a.x = 1", "the same, and so is reading it"),
        Equivalent("`parl.Model`, `parl.Algorithm`, `parl.Agent`",
            "a `torch.nn.Module`; `remotely_rl.ppo` and the others; `remotely_rl.load(run)`", "",
            ("module.Model", "module.Algorithm", "module.Agent")),
    ),
    "multiprocessing": (
        Equivalent("Process(target=f)", "remotely.Executor().submit(f)", "", ("module.Process",)),
        Equivalent("with Pool(8) as p: p.map(f, xs)",
            "with remotely.Executor(8) as e: list(e.map(f, xs))",
            "`remotely.Pool` has actors: `pool.map(A.f, xs)`"),
        Equivalent("p.apply_async(f, (x,)).get()", "e.submit(f, x).result()"),
        Equivalent("`result.ready()`, `result.successful()`",
            "`future.done()`, `future.exception() is None`", "",
            ("future.ready", "future.successful")),
        Equivalent("`Queue()`, `Pipe()`", "a remote class with `put` and `get`; methods that yield",
            "", ("module.Queue", "module.Pipe")),
        Equivalent("Manager().Namespace()", "`remotely.remote_class(argparse.Namespace)()`",
            "its attributes are read and written there", ("module.Manager",)),
        Equivalent("shared_memory.SharedMemory", "remotely.SharedArray(shape, dtype)",
            "needs no name and no `unlink`", ("module.shared_memory",)),
        Equivalent("`Lock()`, `Event()`, `Semaphore()`, `Barrier()`, `Value()`",
            "a remote class: its methods run one at a time", "",
            ("module.Lock", "module.Event", "module.Semaphore", "module.Barrier", "module.Value")),
        Equivalent("ProcessPoolExecutor(8)", "remotely.Executor(8)", "lambdas too; on all machines",
            ("module.ProcessPoolExecutor",)),
        Equivalent("joblib.Parallel(n_jobs=8)(...)",
            '`with joblib.parallel_config(backend="remotely"):` the same',
            "after `remotely.register_joblib()`",
            ("module.Parallel", "module.delayed", "module.parallel_backend",
             "module.parallel_config")),
        Equivalent('if __name__ == "__main__":', "nothing: `import` is enough",
            "actors do not run the top level of your script"),
    ),
}  # fmt: skip

HINTS = {
    where: "; ".join(filter(None, (row.ours, row.differs))).replace("`", "")
    for rows in reversed(TABLES.values())
    for row in rows
    for where in row.tried
}
_MISSING = object()


def advice(where: str) -> str:
    """Return what to write instead of a name, such as "module.init"; "" if unknown."""
    ours = HINTS.get(where)
    return f"write {ours} (docs/coming_from.md)" if ours else ""


def no_such_name(
    what: str, where: str, stands_for: str = "", name: str = "", otherwise: str = ""
) -> AttributeError:
    """Return the error for a name that a module, a class, a method or a future does not have.

    The tables call a class `A` and a method `a.f` (`stands_for`); `name` replaces that.
    `otherwise` is the hint if the tables have none.
    """
    message = f"{what} has no {where.partition('.')[2]!r}"
    ours = re.sub(rf"\b{re.escape(stands_for)}\b", name, advice(where)) if name else advice(where)
    return AttributeError("; ".join(filter(None, (message, ours or otherwise))))


class OtherName:
    """A name that a class does not have; its AttributeError gives a hint."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, cls: type) -> Any:
        name = cls.__name__
        raise no_such_name(f"the class {name}", f"class.{self._name}", "A", name)


def add_hints(cls: type) -> None:
    """Add hints to a class, for the names that it does not define."""
    for where in HINTS:
        place, _, name = where.partition(".")
        if place == "class" and inspect.getattr_static(cls, name, _MISSING) is _MISSING:
            setattr(cls, name, OtherName(name))


def static_member(cls: type, name: str, default: object) -> Any:
    """Return a member of a class without running any of its code; `default` if there is none."""
    return default if is_hint(cls, name) else inspect.getattr_static(cls, name, default)


def is_hint(cls: type, name: str) -> bool:
    """Tell whether a class has only a hint under a name."""
    return isinstance(inspect.getattr_static(cls, name, None), OtherName)
