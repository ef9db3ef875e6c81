"""Transfers of large values, to one known process only."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from remotely.protocol.address import parse_address
from remotely.protocol.control import BulkAddress
from remotely.transport import bulk, certificate
from remotely.transport.bulk import BulkRequest, Connection, ValueGone
from remotely.transport.certificate import Certificate

OWN = certificate.make()
NAME = b"n" * 32


class Server:
    """Serves one connection with `answer`."""

    def __init__(self, answer: Callable[[Connection, BulkRequest], None], own: Certificate) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = BulkAddress(
            f"tcp://127.0.0.1:{self._listener.getsockname()[1]}", OWN.fingerprint
        )
        self.requests: list[BulkRequest] = []
        self._answer = answer
        self._own = own
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        raw, _ = self._listener.accept()
        with raw:
            try:
                with bulk.accept(raw, self._own.context) as connection:
                    while (request := connection.wait_for_request()) is not None:
                        self.requests.append(request)
                        self._answer(connection, request)
            except OSError:
                pass

    def close(self) -> None:
        self._listener.close()
        self._thread.join(40)


Serve = Callable[..., Server]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[Server] = []

    def begin(
        answer: Callable[[Connection, BulkRequest], None] = lambda c, r: None,
        own: Certificate = OWN,
    ) -> Server:
        servers.append(Server(answer, own))
        return servers[-1]

    yield begin
    for server in servers:
        server.close()


def test_a_stripe_arrives_and_is_confirmed(serve: Serve) -> None:
    came = bytearray(10)

    def take(connection: Connection, request: BulkRequest) -> None:
        connection.receive_into(memoryview(came)[request.start : request.start + request.nbytes])
        connection.send(bulk.DONE)

    server = serve(take)
    connection = bulk.connect(server.address)
    connection.push(NAME, 0, 6, [memoryview(b"abc"), memoryview(b"def")], b"")
    connection.push(NAME, 6, 4, [memoryview(b"ghij")], b"onward")
    connection.close()

    assert bytes(came) == b"abcdefghij"
    assert server.requests == [
        BulkRequest(bulk.PUSH, NAME, 0, 6),
        BulkRequest(bulk.PUSH, NAME, 6, 4, b"onward"),
    ]


def test_a_stripe_is_fetched(serve: Serve) -> None:
    server = serve(lambda connection, request: connection.send(bulk.HERE, b"0123456789"[4:7]))
    connection = bulk.connect(server.address)
    memory = bytearray(3)
    connection.pull(NAME, 4, memoryview(memory))
    connection.close()
    assert bytes(memory) == b"456"


def test_a_value_that_is_gone_says_why(serve: Serve) -> None:
    server = serve(lambda connection, request: connection.say_gone("its actor ended"))
    connection = bulk.connect(server.address)
    with pytest.raises(ValueGone, match="its actor ended"):
        connection.pull(NAME, 0, memoryview(bytearray(3)))
    connection.close()


def test_a_process_with_another_certificate_is_refused(serve: Serve) -> None:
    server = serve(own=certificate.make())
    with pytest.raises(OSError, match="certificate is not"):
        bulk.connect(server.address)
    assert server.requests == []


def test_tls_before_1_3_is_refused(serve: Serve) -> None:
    server = serve()
    context = certificate.client_context()
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection(parse_address(server.address.tcp)) as raw,
        pytest.raises((ssl.SSLError, OSError)),
    ):
        context.wrap_socket(raw)


def test_an_invalid_request_ends_the_connection(serve: Serve) -> None:
    server = serve()
    connection = bulk.connect(server.address)
    connection.send(bulk.REQUEST.pack(bulk.PUSH, NAME, 0, 1, bulk.MAX_ONWARD_BYTES + 1))
    with pytest.raises(OSError):
        connection.expect_done()
    connection.close()
    assert server.requests == []


@pytest.mark.parametrize("nbytes", [1, 100, bulk.STRIPE_FROM_BYTES, bulk.STRIPE_FROM_BYTES + 1])
def test_stripes_cover_a_value_without_overlap(nbytes: int) -> None:
    end = 0
    for start, length in bulk.stripes(nbytes):
        assert start == end
        assert length > 0
        end += length
    assert end == nbytes


def test_an_error_of_one_stripe_is_raised_after_all_have_moved() -> None:
    ran: list[int] = []

    def move(start: int, nbytes: int) -> None:
        ran.append(nbytes)
        if start == 0:
            raise OSError("it broke")

    with pytest.raises(OSError, match="it broke"):
        bulk.in_stripes(bulk.STRIPE_FROM_BYTES, move)
    assert sum(ran) == bulk.STRIPE_FROM_BYTES


def test_each_piece_of_a_stripe_has_its_own_timeout() -> None:
    """A slow receiver that keeps reading is not given up."""
    sent: list[int] = []

    class Slow:
        def sendall(self, data: memoryview) -> None:
            sent.append(len(data))

    Connection(cast(ssl.SSLSocket, Slow())).send(b"head", memoryview(bytes(bulk.CHUNK_BYTES * 5)))

    assert sum(sent) == 4 + 5 * bulk.CHUNK_BYTES
    assert max(sent) <= bulk.CHUNK_BYTES
