"""Tokens, owners and buckets."""

import pytest

from tidemill.errors import NotAllowed
from tidemill_gateway.auth import Owner, Owners, bearer


def test_a_token_gives_its_owner_and_anything_else_nobody() -> None:
    owner = Owner("default")
    owners = Owners({"secret": owner, "": Owner("nobody")})

    assert owners.resolve("secret") is owner
    assert [owners.resolve(token) for token in ("", None, "secre", "secret ", "Secret", "\ud800")] == [None] * 6


def test_an_owner_may_use_the_buckets_of_its_patterns_only() -> None:
    owner = Owner("team", ("team-*", "shared"))

    owner.check_bucket("team-inbox")
    owner.check_bucket("shared")
    with pytest.raises(NotAllowed, match="bucket other"):
        owner.check_bucket("other")


@pytest.mark.parametrize(
    ("header", "token"),
    [("Bearer abc", "abc"), ("bearer  abc ", "abc"), ("abc", "abc"), ("Basic abc", None), ("", None), (None, None)],
)
def test_the_token_is_read_from_its_header(header: str | None, token: str | None) -> None:
    assert bearer(header) == token
