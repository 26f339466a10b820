"""The bounded log of one job."""

from tidemill_workers.agent.runner_log import HEAD_LIMIT_BYTES, LINE_LIMIT_BYTES, TAIL_LIMIT_BYTES, JobLog


def test_lines_come_out_as_they_are_complete_whatever_the_pieces() -> None:
    log = JobLog()
    log.feed("stdout", b"on")
    assert not log.pending
    log.feed("stderr", b"other\n")
    log.feed("stdout", b"e\ntwo\nth")
    assert log.take() == [("stderr", "other"), ("stdout", "one"), ("stdout", "two")]
    assert log.take() == []
    assert log.finish() == [("stdout", "th")]


def test_what_is_not_utf8_is_replaced_and_a_progress_bar_leaves_its_last_state() -> None:
    log = JobLog()
    log.feed("stdout", b"\xff\xfeok\n10%\r50%\r100%\r\n\n")
    assert log.finish() == [("stdout", "\ufffd\ufffdok"), ("stdout", "100%"), ("stdout", "")]


def test_a_line_without_end_is_cut_and_says_how_much_is_gone() -> None:
    log = JobLog()
    for _ in range(10):
        log.feed("stdout", b"x" * LINE_LIMIT_BYTES)
    ((stream, line),) = log.finish()
    assert (stream, line) == ("stdout", "x" * LINE_LIMIT_BYTES + f" [{9 * LINE_LIMIT_BYTES} more bytes]")


def test_of_a_huge_log_the_beginning_and_the_end_are_kept() -> None:
    log = JobLog()
    total = 100_000
    for number in range(total):
        log.feed("stdout", b"line %06d of many\n" % number)
    lines = log.finish()
    size = sum(len(line) + 1 for _, line in lines)
    assert size < HEAD_LIMIT_BYTES + TAIL_LIMIT_BYTES + 200
    assert lines[0] == ("stdout", "line 000000 of many")
    assert lines[-1] == ("stdout", f"line {total - 1:06} of many")
    ((note,),) = [[line] for stream, line in lines if stream == "tidemill"]
    assert note.startswith(f"[{total - len(lines) + 1:,} lines with ")


def test_the_excerpt_is_the_last_forty_lines_within_eight_kibibytes() -> None:
    log = JobLog()
    for number in range(100):
        log.feed("stdout", b"%d\n" % number)
    log.feed("stdout", b"unfinished")
    assert log.excerpt().split("\n") == [*(str(number) for number in range(61, 100)), "unfinished"]
    log.feed("stdout", ("ä" * 4000 + "\n").encode() * 5)
    assert len(log.excerpt().encode()) <= 8192
    assert "\ufffd" not in log.excerpt()
