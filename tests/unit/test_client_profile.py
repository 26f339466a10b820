"""Which address and which token a client uses."""

import json
from pathlib import Path

import pytest

from tidemill.client.profile import Profile, profile_path, resolve
from tidemill.errors import InvalidSpec

OTHER = "http://other:1"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "tidemill" / "profile.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"url": "http://saved:1/", "token": "saved"}))
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def test_without_anything_the_default_is_used(tmp_path: Path) -> None:
    assert resolve(environ={"XDG_CONFIG_HOME": str(tmp_path)}) == Profile("http://127.0.0.1:8080", "")


def test_the_profile_gives_both(environ: dict[str, str]) -> None:
    assert resolve(environ=environ) == Profile("http://saved:1", "saved")


def test_the_environment_outweighs_the_profile(environ: dict[str, str]) -> None:
    environ |= {"TIDEMILL_URL": "http://env:1", "TIDEMILL_TOKEN": "env"}
    assert resolve(environ=environ) == Profile("http://env:1", "env")


def test_arguments_outweigh_the_environment(environ: dict[str, str]) -> None:
    environ |= {"TIDEMILL_URL": "http://env:1", "TIDEMILL_TOKEN": "env"}
    assert resolve(OTHER, "arg", environ) == Profile(OTHER, "arg")


def test_the_token_of_the_profile_goes_to_no_other_address(environ: dict[str, str]) -> None:
    assert resolve(OTHER, environ=environ) == Profile(OTHER, "")
    assert resolve("http://saved:1", environ=environ).token == "saved"


def test_a_token_of_the_environment_goes_with_the_saved_address(environ: dict[str, str]) -> None:
    assert resolve(environ={**environ, "TIDEMILL_TOKEN": "env"}) == Profile("http://saved:1", "env")


@pytest.mark.parametrize("content", ["{", "[]", '{"token": "x"}'])
def test_a_damaged_profile_is_named(environ: dict[str, str], content: str) -> None:
    profile_path(environ).write_text(content)
    with pytest.raises(InvalidSpec, match=r"profile\.json"):
        resolve(environ=environ)


def test_an_address_without_a_scheme_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(InvalidSpec, match="localhost:8080"):
        resolve("localhost:8080", environ=environ)


def test_a_profile_does_not_print_its_token() -> None:
    assert "secret" not in repr(Profile("http://x", "secret"))
