"""What the tests of the gateway share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import S3
from tests.support.gateway import ECHO, Lab, free_socket, run_gateway


@pytest.fixture
def lab(s3: S3, redis_url: str, bucket: str) -> Iterator[Lab]:
    """A gateway with the function `ECHO`, and without its threads."""
    with free_socket() as sock, run_gateway(s3, redis_url, bucket, sock) as found:
        found.deploy(ECHO).raise_for_status()
        yield found
