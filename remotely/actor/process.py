"""What an actor does with the process in which it is.

Mostly the process is there for the actor alone, and ends with it.  A process that serves an object
of its own (remotely/guest/) was there before and goes on afterwards: see BorrowedProcess there.
"""

import traceback
from typing import Protocol

from remotely.actor import exiting, log_sender
from remotely.actor.servant import Servant
from remotely.actor.worker_line import WorkerLine
from remotely.api import connection, flight_recorder


class Process(Protocol):
    """Whose process it is."""

    def begin(self, name: str, line: WorkerLine) -> None:
        """The actor of this name is about to be."""

    def kill(self) -> None:
        """The worker is gone, or its lease is over: nothing of the actor may go on."""

    def leave(self, servant: Servant, error: BaseException | None) -> None:
        """The actor has answered its last call; `error`, if there is one, is why."""


class OwnProcess:
    """The process of one actor, and of nothing else."""

    def begin(self, name: str, line: WorkerLine) -> None:
        flight_recorder.serve(line.hand_over)
        log_sender.install(name, line.send)

    def kill(self) -> None:
        exiting.end_group()

    def leave(self, servant: Servant, error: BaseException | None) -> None:
        """Let go of everything that the user's code has left."""
        if error is not None:
            traceback.clear_frames(error.__traceback__)  # they hold the object
        files = exiting.flush_files()
        servant.let_go()
        exiting.run_exit_functions()
        connection.shutdown()
        exiting.flush_files()
        del files
