"""The messages of a learner, as an actor reads them: the newest, when a rollout begins."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import remotely


class Messages:
    """Reads what is published, each message at most once; nothing if there is no source."""

    def __init__(self, source: "remotely.Published[Any] | None" = None):
        self._source = source
        self._number = 0  # of the message that was read last

    def newest(self, at_least: int) -> Any:
        """Return the newest message, of this number or later; None if it was read already."""
        if self._source is None:
            return None
        self._source.wait(newer_than=at_least - 1)  # on another machine it may be under way
        if self._source.version == self._number:
            return None
        message, self._number = self._source.latest()
        # What is used of it is copied, and the learner takes the memory again.
        self._source.release()
        return message
