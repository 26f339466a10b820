"""Whatever the key, its event names it; whatever the body, reading it does not raise."""

import json
from urllib.parse import quote, quote_plus

from hypothesis import given
from hypothesis import strategies as st

from tidemill_gateway.intake.dialects import read

_KEYS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=60)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
_NAMES = st.sampled_from(
    ["Records", "eventName", "s3", "bucket", "object", "key", "name", "event_type", "message", "new_entry", "Key"]
)


@given(_KEYS)
def test_a_minio_event_names_the_key_that_was_written(key: str) -> None:
    record = {
        "eventName": "s3:ObjectCreated:Put",
        "s3": {"bucket": {"name": "inbox"}, "object": {"key": quote_plus(key)}},
    }
    [event] = read(json.dumps({"Key": f"inbox/{key}", "Records": [record]}).encode()).events
    assert event.keys == (key,)
    [event] = read(json.dumps({"Records": [record]}).encode()).events
    assert event.keys[0] == key


@given(_KEYS)
def test_an_aws_event_names_the_key_that_was_written(key: str) -> None:
    record = {
        "eventName": "ObjectCreated:Put",
        "s3": {"bucket": {"name": "inbox"}, "object": {"key": quote(key, safe="/")}},
    }
    [event] = read(json.dumps({"Records": [record]}).encode()).events
    assert event.keys[0] == key


@given(_KEYS.filter(lambda key: key.split("/")[0] not in ("", ".uploads", ".versions", ".seaweedfs")))
def test_a_seaweedfs_event_names_the_key_that_was_written(key: str) -> None:
    body = {"event_type": "create", "key": f"/buckets/inbox/{key}", "message": {"new_entry": {"name": key}}}
    [event] = read(json.dumps(body).encode()).events
    assert event.keys == (key,)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_without_an_error(body: bytes) -> None:
    assert isinstance(read(body).events, list)


@given(st.dictionaries(_NAMES, _JSON | st.lists(st.dictionaries(_NAMES, _JSON, max_size=5), max_size=3), max_size=6))
def test_any_json_is_read_without_an_error(body: dict[str, object]) -> None:
    assert isinstance(read(json.dumps(body).encode()).events, list)
