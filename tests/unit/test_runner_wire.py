"""Messages between agent and runner."""

import os

import pytest

from tidemill_workers.runner import wire


def test_messages_cut_anywhere_come_out_whole() -> None:
    sent: list[wire.Message] = [{"type": "log", "line": "é\ud800\n"}, {"type": "run", "params": {"a": [1, None]}}]
    data = b"".join(wire.encode(message) for message in sent)
    for size in (1, 2, 7, len(data)):
        decoder = wire.Decoder()
        got = [m for at in range(0, len(data), size) for m in decoder.feed(data[at : at + size])]
        assert got == sent


def test_a_blocking_reader_takes_one_message_and_leaves_the_next_in_the_pipe() -> None:
    read, write = os.pipe()
    wire.send(write, {"type": "first"})
    wire.send(write, {"type": "second"})
    os.close(write)
    assert [wire.receive(read), wire.receive(read), wire.receive(read)] == [{"type": "first"}, {"type": "second"}, None]
    os.close(read)


@pytest.mark.parametrize(
    "data", [b"\xff\xff\xff\xff", b"\0\0\0\1x", b"\0\0\0\2[]", b"\0\0\0\2{}"], ids=["huge", "text", "list", "no type"]
)
def test_junk_is_refused_at_once(data: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.Decoder().feed(data)
