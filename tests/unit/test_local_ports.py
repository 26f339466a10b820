"""Ports that stay ours between choosing and binding."""

import socket

import pytest

from tidemill.local.ports import GRPC_OFFSET, LOOPBACK, NoFreePort, Reservation, is_free


def test_a_reserved_port_is_free_and_nobody_else_gets_it() -> None:
    with Reservation() as ours, Reservation() as theirs:
        port = ours.take()
        assert is_free(port)
        assert theirs.take(port) != port
        with pytest.raises(NoFreePort):
            theirs.take_exactly(port)
    with Reservation() as later:
        assert later.take_exactly(port) == port


def test_a_port_that_somebody_listens_on_is_not_taken() -> None:
    with socket.create_server((LOOPBACK, 0)) as server, Reservation() as ours:
        used = server.getsockname()[1]
        assert not is_free(used)
        assert ours.take(used) != used
        with pytest.raises(NoFreePort):
            ours.take_exactly(used)


def test_a_pair_needs_both_ends_and_a_refused_one_holds_neither() -> None:
    with Reservation() as ours, Reservation() as theirs:
        low = ours.take_pair()
        assert theirs.take(low) != low
        assert theirs.take(low + GRPC_OFFSET) != low + GRPC_OFFSET
        ours.close()
        theirs.take_exactly(low + GRPC_OFFSET)
        assert ours.take_pair(low) != low
        assert theirs.take_exactly(low) == low


def test_many_reservations_never_overlap() -> None:
    with Reservation() as ours, Reservation() as theirs:
        taken = [reservation.take_pair() for _ in range(20) for reservation in (ours, theirs)]
        everything = taken + [port + GRPC_OFFSET for port in taken]
        assert len(set(everything)) == len(everything)
