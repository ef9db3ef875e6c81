"""The files of what actors print: of all that live, and of those that ended last."""

from collections import OrderedDict
from pathlib import Path

from remotely.protocol import control
from remotely.worker.output import second_file

KEEP_ENDED = 256  # actors; each has up to 20 MiB


class LogFiles:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._folder.mkdir(parents=True, exist_ok=True)
        self._files: dict[str, tuple[str, Path]] = {}  # with the actor's name
        self._names: dict[str, str] = {}  # to the last actor of that name
        self._ended: OrderedDict[str, None] = OrderedDict()  # the first to end first

    def begin(self, request: control.Request) -> Path:
        """Return the file of an actor; its lives have one together."""
        self._ended.pop(request.actor, None)
        self._names[request.name] = request.actor
        file = self._folder / f"{request.name}-{request.actor[:8]}.log"
        self._files[request.actor] = request.name, file
        return file

    def end(self, actor: str) -> None:
        """It prints no more, unless it begins again."""
        if actor in self._files:
            self._ended[actor] = None
        while len(self._ended) > KEEP_ENDED:
            self._forget(self._ended.popitem(last=False)[0])

    def find(self, actor: str) -> tuple[str, Path | None]:
        """Return the actor of this id, or the last of this name, and its file if it is known."""
        actor = self._names.get(actor, actor)
        _, file = self._files.get(actor, ("", None))
        return actor, file

    def _forget(self, actor: str) -> None:
        name, file = self._files.pop(actor)
        if self._names.get(name) == actor:
            del self._names[name]
        for kept in (file, second_file(file)):
            kept.unlink(missing_ok=True)
