"""A pool keeps what was used, and repeats a use whose idle connection has become stale."""

import pytest

from remotely.transport.connection_pool import ConnectionPool


class Connection:
    """Fails once its peer has closed it."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.is_stale = self.is_closed = False

    def work(self) -> "Connection":
        if self.is_stale:
            raise ConnectionResetError(self.peer)
        return self

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def made() -> list[Connection]:
    return []


@pytest.fixture
def pool(made: list[Connection]) -> ConnectionPool[str, Connection]:
    def connect(peer: str) -> Connection:
        made.append(Connection(peer))
        return made[-1]

    return ConnectionPool(connect, idle_s=10.0)


Pool = ConnectionPool[str, Connection]


def test_a_connection_is_used_again_and_one_in_use_is_not(
    pool: Pool, made: list[Connection]
) -> None:
    first = pool.use("a", Connection.work)
    assert pool.use("a", Connection.work) is first
    assert pool.use("b", Connection.work).peer == "b"
    second = pool.use("a", lambda outer: pool.use("a", Connection.work))
    assert second is not first
    assert len(made) == 3


def test_a_use_is_repeated_with_other_connections_and_stale_ones_are_closed(
    pool: Pool, made: list[Connection]
) -> None:
    pool.use("a", lambda _: pool.use("a", Connection.work))
    for connection in made:
        connection.is_stale = True
    fresh = pool.use("a", Connection.work)
    assert [connection.is_closed for connection in made] == [True, True, False]
    assert pool.use("a", Connection.work) is fresh


def test_an_error_on_a_new_connection_is_raised(pool: Pool, made: list[Connection]) -> None:
    def fail(_: Connection) -> None:
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        pool.use("a", fail)
    assert [connection.is_closed for connection in made] == [True]


def test_another_error_is_raised_at_once(pool: Pool, made: list[Connection]) -> None:
    pool.use("a", Connection.work)

    def fail(_: Connection) -> None:
        raise ValueError("not lost")

    with pytest.raises(ValueError, match="not lost"):
        pool.use("a", fail)
    assert [connection.is_closed for connection in made] == [True]


def test_idle_connections_are_closed_after_a_while(
    pool: Pool, made: list[Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("remotely.transport.connection_pool.time.monotonic", lambda: now)
    pool.use("a", Connection.work)
    now += 6
    pool.use("b", Connection.work)
    now += 6
    pool.tidy()
    assert [connection.is_closed for connection in made] == [True, False]


def test_nothing_is_kept_after_the_end(pool: Pool, made: list[Connection]) -> None:
    pool.use("a", Connection.work)
    pool.use("b", lambda connection: pool.close())
    assert [connection.is_closed for connection in made] == [True, True]
