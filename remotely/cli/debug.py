"""The command `remotely debug`: the terminal of an actor's debugger.

It asks the actor, over the channel of calls, for what the debugger says (protocol/debugging.py),
and reads lines with the terminal's own editing, history and completion.  Ctrl-C never ends it while
something runs there:

    at the prompt           drops the line
    while a call runs       stops it where it is
    while nothing runs      leaves, like Ctrl-D at the prompt

Where lines come from a file or a pipe, nobody is there to press it.  Then the command leaves when
the input has ended and what it asked for is done, and also while nothing runs.
"""

import contextlib
import os
import select
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from remotely.calling.engine import CallEngine
from remotely.cli.inspect import id_of, living_actors
from remotely.cli.options import (
    ChosenCluster,
    address_option,
    chosen_cluster,
    client_at,
    key_option,
    local_port_option,
)
from remotely.errors import ActorDied, RemotelyError, WorkerLost, doubt
from remotely.machine import threads
from remotely.protocol import control
from remotely.protocol.debugging import Ask, Heard
from remotely.protocol.wire import Kind
from remotely.reporting.cluster_status import duration
from remotely.reporting.terminal import shown

if TYPE_CHECKING:
    from remotely.calling.actor import CalledActor

FIRST_ASK_S, LAST_ASK_S = 0.001, 0.05  # between two questions, while something runs
SAY_S = 0.5  # after which the user is told that it runs
KEEP_ALIVE_S = 1.0  # at a prompt
COMPLETE_S = 2.0
_DELIMITERS = " \t\n`@#%^&*()=+[{]}\\|;:'\",<>?"  # as pdb's


@click.command(short_help="Attach pdb to an actor that has stopped at breakpoint().")
@click.argument("actor", required=False)
@click.option(
    "--post-mortem",
    is_flag=True,
    help="Stop where the actor's next call fails, with its frames, before its caller gets the "
    "error.",
)
@address_option
@local_port_option
@key_option
def debug(
    actor: str | None, post_mortem: bool, address: str | None, port: int | None, key: Path | None
) -> None:
    """Attach pdb to an actor that has stopped at breakpoint(), or with an error.

    ACTOR is a name that `remotely status` shows, or an id. Without it, those that have stopped are
    listed.

    \b
    remotely debug
    remotely debug Counter-1
    remotely debug Counter-1 --post-mortem

    The prompt is pdb's. Ctrl-C stops what runs, Ctrl-D leaves and the call goes on, q ends the call
    with bdb.BdbQuit. Several terminals can debug several actors, but one actor has one at a time.
    An actor that has not stopped is attached to as well: Ctrl-C stops the call that it runs, also
    one that hangs.

    Who may call an actor may debug it.
    """
    where = chosen_cluster(address, port)
    with client_at(where, key) as client:
        living = list(living_actors(client, fresh=True))
        chosen = _chosen(living, where) if actor is None else _named(living, actor)
        engine = CallEngine(client)
        location = chosen.location
        if not _has_input():
            raise RemotelyError(
                "there is no terminal to debug in, and no input: give commands by `< FILE`, or run "
                "this in a terminal"
            )
        client.attend(location.actor)
        session = DebugSession(engine, engine.borrow(location.actor, location.name))
        _Terminal(session, location.name).run(post_mortem)


def _has_input() -> bool:
    """Return whether a terminal or commands may follow: an open pipe may bring some."""
    try:
        number = sys.stdin.fileno()
        file = os.fstat(number)
    except (AttributeError, OSError, ValueError):  # it is closed
        return False
    if stat.S_ISREG(file.st_mode):
        return file.st_size > os.lseek(number, 0, os.SEEK_CUR)
    if stat.S_ISCHR(file.st_mode):
        return not os.path.samestat(file, os.stat(os.devnull))
    poll = select.poll()
    poll.register(number, select.POLLIN)
    return not any(
        event & select.POLLHUP and not event & select.POLLIN for _, event in poll.poll(0)
    )


def _named(living: Sequence[control.ActorStatus], name: str) -> control.ActorStatus:
    wanted = id_of(name, [actor.location for actor in living])
    for actor in living:
        if actor.location.actor == wanted:
            return actor
    names = ", ".join(sorted({actor.location.name for actor in living})) or "none now"
    raise RemotelyError(f"no actor of this cluster is named {name!r}; there are: {names}")


def _chosen(living: Sequence[control.ActorStatus], where: ChosenCluster) -> control.ActorStatus:
    """Return the actor that has stopped; of several, the one that the user chooses."""
    found = sorted(
        (actor for actor in living if actor.figures.stopped_at),
        key=lambda actor: -actor.figures.stopped_s,
    )
    if not found:
        raise RemotelyError(
            f"no actor of {where.shown} waits for a debugger: one does at breakpoint(), and with "
            "options(post_mortem=True) where a call fails. Name one to wait for it"
        )
    for number, actor in enumerate(found, 1):
        figures, name = actor.figures, actor.location.name
        attached = ", a debugger is attached" if figures.is_debugged else ""
        click.echo(
            shown(
                f"{number:>3}  {name}  {figures.stopped_at}  for {duration(figures.stopped_s)}"
                f"{attached}"
            )
        )
    if len(found) == 1:
        return found[0]
    if not sys.stdin.isatty():
        raise RemotelyError(f"{len(found)} actors wait for a debugger: name one")
    number = click.prompt("Which", type=click.IntRange(1, len(found)), default=1)
    return found[number - 1]


class _ActorEnded(RemotelyError):
    """The end of the actor, as by `close` or of its script if it was asked for."""

    def __init__(self, why: str, was_asked: bool) -> None:
        super().__init__(why)
        self.was_asked = was_asked


class DebugSession:
    """The requests of this terminal to one actor.  Any thread may ask."""

    def __init__(self, engine: CallEngine, actor: "CalledActor") -> None:
        self._engine = engine
        self._actor = actor

    def ask(self, request: Ask, text: str = "", timeout_s: float | None = None) -> Heard:
        """Raises _ActorEnded if the actor has, and RemotelyError if the request is refused."""
        from remotely.values.codec import Encoded

        value = Encoded((text.encode(errors="replace"),), ())
        (future,) = self._engine.send([self._actor], Kind.DEBUG, request, value, background=False)
        try:
            heard: Heard = future.result(timeout_s)
        except (ActorDied, WorkerLost) as error:
            # The request of this terminal is no call of the user's: not "the call did not run".
            why = str(error).replace(doubt(error.may_have_run), "")
            was_asked = isinstance(error, ActorDied) and error.exit == 0
            raise _ActorEnded(why, was_asked) from None
        if heard.refused:
            raise RemotelyError(heard.refused)
        return heard


class _Commands:
    """Lines from a file or a pipe, whose end is seen before a line is wanted."""

    def __init__(self, number: int) -> None:
        self._number = number  # the descriptor
        self._poll = select.poll()
        self._poll.register(number, select.POLLIN)
        self._read = b""
        self._is_over = False

    @property
    def has_ended(self) -> bool:
        """Whether no line is left.  Does not wait: an open pipe may bring some."""
        while not self._read and not self._is_over and self._poll.poll(0):
            self._read_on()
        return self._is_over and not self._read

    def next(self) -> str:
        """Wait for a line.  Raises EOFError at the end."""
        while b"\n" not in self._read and not self._is_over:
            self._read_on()
        if not self._read:
            raise EOFError
        line, _, self._read = self._read.partition(b"\n")
        return line.decode(errors="replace").removesuffix("\r")

    def _read_on(self) -> None:
        piece = os.read(self._number, 1 << 16)
        self._read += piece
        self._is_over = not piece


class _Over(Exception):
    """The session has ended while the user was at the prompt."""


class _Terminal:
    """The user's side of a session."""

    def __init__(self, session: DebugSession, name: str) -> None:
        self._session = session
        self._name = name
        self._prompt = ""  # the last line of what was said, if it is open
        self._is_reading = False  # the main thread waits for a line
        self._why_over: RemotelyError | None = None
        self._commands = None if sys.stdin.isatty() else _Commands(sys.stdin.fileno())
        self._words: list[str] = []

    def run(self, post_mortem: bool) -> None:
        """Attach; return when the user has left."""
        heard = self._attach()
        if not heard.is_attached:
            return
        if post_mortem:
            self._session.ask(Ask.CATCH)
            click.echo(
                f"The next call of {self._name} that fails stops here. Ctrl-C leaves.", err=True
            )
        try:
            self._go_on(heard, has_said=post_mortem)
        except _ActorEnded as end:
            if not end.was_asked:
                raise
            click.echo(f"({end}.)", err=True)
        finally:
            with contextlib.suppress(RemotelyError):  # the actor has ended, or the user has left
                self._session.ask(Ask.LEAVE, timeout_s=KEEP_ALIVE_S)

    def _attach(self) -> Heard:
        """Attach, also to an actor whose main thread runs a call, as it looks out for this.

        Returns the reply; one that is not attached if the user has given up.
        """
        who = f"pid {os.getpid()} on {os.uname().nodename}"
        has_answered = threading.Event()

        def say() -> None:
            if not has_answered.wait(SAY_S):
                text = (
                    f"{self._name} has not answered yet: it may be in C code that holds the GIL. "
                    "Ctrl-C gives up."
                )
                click.echo(text, err=True)

        threads.start("patience", say)
        try:
            return self._session.ask(Ask.ATTACH, who)
        except KeyboardInterrupt:
            return Heard()
        finally:
            has_answered.set()

    def _go_on(self, heard: Heard, has_said: bool) -> None:
        waits = None if has_said else time.monotonic()  # since when the user was not told
        pause_s = FIRST_ASK_S
        while True:
            try:
                self._show(heard.text)
                if not heard.is_attached:
                    return
                if heard.asks:
                    heard = self._session.ask(Ask.LINE, self._read())
                    waits, pause_s = time.monotonic(), FIRST_ASK_S
                    continue
                if self._commands is not None and (
                    not heard.runs or (self._commands.has_ended and not heard.is_stopped)
                ):
                    return
                if waits is not None and time.monotonic() > waits + SAY_S:
                    waits = None
                    self._say_that_it_runs(heard.runs)
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, LAST_ASK_S)
                heard = self._session.ask(Ask.READ)
            except KeyboardInterrupt:
                heard = self._session.ask(Ask.INTERRUPT)
                if not heard.runs and not heard.asks:
                    click.echo()
                    return
                pause_s = FIRST_ASK_S

    def _say_that_it_runs(self, runs: bool) -> None:
        self._end_line()
        what = "stops it" if runs else "leaves"
        how = "runs" if runs else "runs no call, and stops here when one does"
        click.echo(f"({self._name} {how}. Ctrl-C {what}.)", err=True)

    def _show(self, text: str) -> None:
        """Show what was said, but for the prompt."""
        lines, newline, rest = (self._prompt + shown(text)).rpartition("\n")
        if newline:
            click.echo(lines)
        self._prompt = rest

    def _end_line(self) -> None:
        if self._prompt:
            click.echo(self._prompt)
            self._prompt = ""

    def _read(self) -> str:
        """Read a line; "" is the end of input."""
        prompt, self._prompt = self._prompt, ""
        with _line_editing(self._complete), self._kept_alive():
            while True:
                try:
                    self._is_reading = True
                    try:
                        return f"{self._next_line(prompt)}\n"
                    finally:
                        self._is_reading = False
                except EOFError:
                    click.echo()
                    return ""
                except KeyboardInterrupt:
                    click.echo("\n--KeyboardInterrupt--")
                except _Over:
                    click.echo()
                    assert self._why_over is not None
                    raise self._why_over from None

    def _next_line(self, prompt: str) -> str:
        if self._commands is None:
            return input(prompt)
        click.echo(prompt, nl=False)
        return self._commands.next()

    @contextlib.contextmanager
    def _kept_alive(self) -> Iterator[None]:
        """Ask every second: the actor hears that the terminal is there, and this hears if it is."""
        has_read = threading.Event()

        def ask() -> None:
            while not has_read.wait(KEEP_ALIVE_S):
                try:
                    if not self._session.ask(Ask.READ).is_attached:
                        raise RemotelyError(f"{self._name} has let the debugger go")
                except RemotelyError as error:
                    self._why_over = error
                    main = threading.main_thread().ident
                    if not has_read.is_set() and main is not None:
                        signal.pthread_kill(main, signal.SIGUSR1)
                    return

        before = signal.signal(signal.SIGUSR1, self._on_over)
        keeper = threads.start("keep-alive", ask)
        try:
            yield
        finally:
            has_read.set()
            keeper.join()
            signal.signal(signal.SIGUSR1, before)

    def _on_over(self, number: int, frame: Any) -> None:
        if self._is_reading:
            raise _Over

    def _complete(self, word: str, number: int) -> str | None:
        """As readline wants it: return completion `number`, None after the last one."""
        if number == 0:
            self._words = []
            with contextlib.suppress(RemotelyError):
                self._words = self._ask_words()
        return self._words[number] if number < len(self._words) else None

    def _ask_words(self) -> list[str]:
        import readline

        line = readline.get_line_buffer()[: readline.get_endidx()]
        heard = self._session.ask(Ask.COMPLETE, f"{readline.get_begidx()} {line}")
        deadline = time.monotonic() + COMPLETE_S
        while heard.words is None and time.monotonic() < deadline:
            time.sleep(0.01)
            heard = self._session.ask(Ask.READ)
        return [shown(word) for word in heard.words or ()]


@contextlib.contextmanager
def _line_editing(complete: Any) -> Iterator[None]:
    """Let the terminal's readline edit lines.  Its history is kept for this command only."""
    try:
        import readline
    except ImportError:  # a Python without it: lines are plain
        yield
        return
    before = readline.get_completer(), readline.get_completer_delims()
    readline.set_completer(complete)
    readline.set_completer_delims(_DELIMITERS)
    readline.parse_and_bind("tab: complete")
    try:
        yield
    finally:
        readline.set_completer(before[0])
        readline.set_completer_delims(before[1])
