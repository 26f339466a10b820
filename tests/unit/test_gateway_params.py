"""Parameters: checked at deploy and at each call."""

from typing import Any

import pytest

from tidemill.errors import InvalidSpec
from tidemill_gateway import params

_RULES: dict[str, Any] = {
    "top_k": {"type": "integer", "default": 3, "minimum": 1, "maximum": 10},
    "lang": {"type": "string", "enum": ["de", "en"], "required": True},
    "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5},
}


def test_defaults_are_filled_in_and_optional_ones_left_out() -> None:
    assert params.check(_RULES, {"lang": "de"}, "f") == {"top_k": 3, "lang": "de"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "needs the parameter lang"),
        ({"lang": "fr"}, "one of 'de', 'en'"),
        ({"lang": "de", "top_k": 0}, "at least 1"),
        ({"lang": "de", "top_k": 11}, "at most 10"),
        ({"lang": "de", "top_k": "3"}, "of the type integer"),
        ({"lang": "de", "top_k": True}, "of the type integer"),
        ({"lang": "de", "name": "A"}, "pattern"),
        ({"lang": "de", "name": "aaaaaa"}, "at most 5 characters"),
        ([], "must be a JSON object"),
    ],
)
def test_a_wrong_value_is_refused_with_what_it_should_have_been(given: Any, said: str) -> None:
    with pytest.raises(InvalidSpec, match=said):
        params.check(_RULES, given, "f")


def test_an_unknown_parameter_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(InvalidSpec) as caught:
        params.check(_RULES, {"lang": "de", "topk": 3}, "f")

    assert caught.value.hint == "Did you mean top_k?"


def test_a_whole_number_may_be_written_as_a_float() -> None:
    assert params.check(_RULES, {"lang": "de", "top_k": 4.0}, "f")["top_k"] == 4.0


@pytest.mark.parametrize(
    "rule",
    [
        {"type": "int"},
        {"typ": "integer"},
        {"enum": []},
        {"minimum": "1"},
        {"pattern": "("},
        {"required": "yes"},
        {"type": "integer", "default": "x"},
        {"type": "integer", "minimum": 5, "default": 3},
    ],
)
def test_a_rule_that_is_none_is_refused_at_deploy(rule: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec, match=r"params\.p"):
        params.check_rules({"p": rule})
