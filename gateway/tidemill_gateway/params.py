"""The parameters of a function: a small, strict part of JSON Schema, checked at deploy and at each call.

Keywords: `type` (string, integer, number, boolean, array, object), `enum`, `minimum`, `maximum`, `exclusiveMinimum`,
`exclusiveMaximum`, `minLength`, `maxLength`, `pattern`, `minItems`, `maxItems`, `default`, `required`, `title`,
`description`, `examples`. `required` is a yes or no of the parameter itself. What is unknown is refused with the
nearest known name, in a spec and in a call alike.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tidemill.errors import InvalidSpec

Rule = Mapping[str, Any]
_MAX_TEXT = 64 * 1024


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda v: isinstance(v, str),
    "integer": lambda v: _number(v) and float(v).is_integer() if not isinstance(v, int) else not isinstance(v, bool),
    "number": _number,
    "boolean": lambda v: isinstance(v, bool),
    "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict),
}
# keyword -> (which values it speaks of, does it hold, what it says)
_LIMITS: dict[str, tuple[Callable[[Any], bool], Callable[[Any, Any], bool], str]] = {
    "minimum": (_number, lambda v, limit: v >= limit, "at least {}"),
    "maximum": (_number, lambda v, limit: v <= limit, "at most {}"),
    "exclusiveMinimum": (_number, lambda v, limit: v > limit, "more than {}"),
    "exclusiveMaximum": (_number, lambda v, limit: v < limit, "less than {}"),
    "minLength": (_TYPES["string"], lambda v, limit: len(v) >= limit, "at least {} characters long"),
    "maxLength": (_TYPES["string"], lambda v, limit: len(v) <= limit, "at most {} characters long"),
    "minItems": (_TYPES["array"], lambda v, limit: len(v) >= limit, "at least {} items long"),
    "maxItems": (_TYPES["array"], lambda v, limit: len(v) <= limit, "at most {} items long"),
    "pattern": (_TYPES["string"], lambda v, limit: re.search(limit, v) is not None, "of the pattern {}"),
}
_PLAIN = frozenset({"type", "enum", "default", "required", "title", "description", "examples"})
_KEYWORDS = _PLAIN | _LIMITS.keys()


def check_rules(params: Mapping[str, Rule]) -> None:
    """Check the `params` of a spec.

    Raises:
        InvalidSpec: for an unknown keyword or type, a limit that is none, a default that breaks its own rule.
    """
    for name, rule in params.items():
        for keyword, value in rule.items():
            _check_keyword(f"params.{name}", keyword, value)
        if "default" in rule and (fault := _fault(rule["default"], rule)):
            raise InvalidSpec(f"params.{name}: the default {rule['default']!r} is not {fault}")


def check(params: Mapping[str, Rule], given: Any, function: str) -> dict[str, Any]:
    """Give the parameters of a call with the defaults filled in.

    Raises:
        InvalidSpec: for an unknown parameter (with the nearest known one), a missing one, or a wrong value.
    """
    if not isinstance(given, dict):
        raise InvalidSpec("params must be a JSON object", hint='Write for example {"top_k": 3}.')
    for name in given:
        if name not in params:
            raise InvalidSpec(
                f"{function} has no parameter {name!r}", hint=_nearest(str(name), params, "It takes none.")
            )
    values: dict[str, Any] = {}
    for name, rule in params.items():
        if name in given:
            if fault := _fault(given[name], rule):
                raise InvalidSpec(f"the parameter {name} of {function} must be {fault}, not {_short(given[name])}")
            values[name] = given[name]
        elif "default" in rule:
            values[name] = rule["default"]
        elif rule.get("required"):
            raise InvalidSpec(f"{function} needs the parameter {name}", hint=str(rule.get("description") or "Give it."))
    return values


def _check_keyword(where: str, keyword: str, value: Any) -> None:
    if keyword not in _KEYWORDS:
        raise InvalidSpec(f"{where}: unknown keyword {keyword!r}", hint=_nearest(keyword, _KEYWORDS, ""))
    if keyword == "type" and value not in _TYPES:
        raise InvalidSpec(f"{where}: {value!r} is no type", hint=_nearest(str(value), _TYPES, ""))
    if keyword == "enum" and (not isinstance(value, list) or not value):
        raise InvalidSpec(f"{where}: enum is a list of the allowed values")
    if keyword == "required" and not isinstance(value, bool):
        raise InvalidSpec(f"{where}: required is true or false")
    if keyword == "pattern":
        try:
            re.compile(value)
        except (re.error, TypeError, RecursionError) as error:
            raise InvalidSpec(f"{where}: the pattern {value!r} is no regular expression: {error}") from error
    elif keyword in _LIMITS and not _number(value):
        raise InvalidSpec(f"{where}: {keyword} must be a number, not {_short(value)}")


def _fault(value: Any, rule: Rule) -> str | None:
    """What the value should have been, or None when it is right."""
    kind = rule.get("type")
    if kind is not None and not _TYPES[kind](value):
        return f"of the type {kind}"
    if "enum" in rule and not any(value == choice and type(value) is type(choice) for choice in rule["enum"]):
        return "one of " + ", ".join(map(_short, rule["enum"][:20]))
    if isinstance(value, str) and len(value) > _MAX_TEXT:
        return f"at most {_MAX_TEXT} characters long"
    for keyword, (speaks_of, holds, text) in _LIMITS.items():
        if keyword in rule and speaks_of(value) and not holds(value, rule[keyword]):
            return text.format(rule[keyword])
    return None


def _nearest(name: str, known: Iterable[str], nothing: str) -> str:
    names = sorted(known)
    close = difflib.get_close_matches(name, names, 1, 0.5)
    if close:
        return f"Did you mean {close[0]}?"
    return f"Known are: {', '.join(names)}." if names else nothing


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
