"""A bucket's notification rules on MinIO, and on stores that speak like it: ours are merged in, the user's own stay.

`PUT ?notification` replaces the whole document, so it is read, our rules in it are replaced, it is written, and read
back. Everything that is not ours stays as it was read, element by element. Ours are known by their id, which begins
with `tidemill-`, and by the target (ARN) that they name; a rule of the user's that sends us the same events already is
enough.

The four events are named one by one: under `s3:ObjectCreated:*` MinIO also reports tags, retention and legal holds.
"""

from __future__ import annotations

import hashlib
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator

from tidemill.errors import InvalidSpec

EVENTS = tuple(f"s3:ObjectCreated:{how}" for how in ("Put", "Post", "Copy", "CompleteMultipartUpload"))
_SPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_ID = "tidemill-"
_NONE = b"<NotificationConfiguration/>"
ElementTree.register_namespace("", _SPACE)


def merged(document: bytes, arn: str, prefixes: Iterable[str]) -> bytes | None:
    """The document with rules for creations below these prefixes, or None when it says so already.

    Raises:
        InvalidSpec: what the store holds is no notification document.
    """
    try:
        root = ElementTree.fromstring(document or _NONE)  # noqa: S314 - the store that we trust with all data
    except ElementTree.ParseError as error:
        raise InvalidSpec(f"the bucket's notification rules cannot be read: {error}") from error
    new = ElementTree.Element(f"{{{_SPACE}}}NotificationConfiguration")
    ours: set[str] = set()
    theirs: list[ElementTree.Element] = []
    for rule in root:
        if _name(rule) == "QueueConfiguration" and _text(rule, "Id").startswith(_ID) and _targets(rule, arn):
            ours.add(_key(rule))
        else:
            theirs.append(rule)
    wanted = {
        _key(rule): rule
        for rule in (_rule(arn, prefix) for prefix in sorted({_sendable(prefix) for prefix in prefixes}))
        if not any(_covers(found, rule, arn) for found in theirs)
    }
    if ours == set(wanted):
        return None
    new.extend(theirs)
    new.extend(wanted.values())
    text: bytes = ElementTree.tostring(new, encoding="utf-8", xml_declaration=True)
    return text


def _rule(arn: str, prefix: str) -> ElementTree.Element:
    rule = ElementTree.Element(f"{{{_SPACE}}}QueueConfiguration")
    # An id of its content: the same rule from two gateways is the same rule.
    _add(rule, "Id", _ID + hashlib.sha256(f"{_bare(arn)}\n{prefix}".encode()).hexdigest()[:16])
    if prefix:
        entry = _add(_add(_add(rule, "Filter"), "S3Key"), "FilterRule")
        _add(entry, "Name", "prefix")
        _add(entry, "Value", prefix)
    _add(rule, "Queue", arn)
    for event in EVENTS:
        _add(rule, "Event", event)
    return rule


def _add(parent: ElementTree.Element, name: str, text: str | None = None) -> ElementTree.Element:
    child = ElementTree.SubElement(parent, f"{{{_SPACE}}}{name}")
    child.text = text
    return child


def _key(rule: ElementTree.Element) -> str:
    """What a rule says, in one text: a rule of ours that somebody changed is not the one that we want."""
    return "\n".join(
        (_text(rule, "Id"), *sorted(_events(rule)), *(f"{name}={value}" for name, value in _filters(rule)))
    )


def _covers(theirs: ElementTree.Element, ours: ElementTree.Element, arn: str) -> bool:
    if _name(theirs) != "QueueConfiguration" or not _targets(theirs, arn):
        return False
    if not set(EVENTS) <= _events(theirs) and "s3:ObjectCreated:*" not in _events(theirs):
        return False
    prefix = dict(_filters(ours)).get("prefix", "")
    return all(name == "prefix" and prefix.startswith(value) for name, value in _filters(theirs))


def _targets(rule: ElementTree.Element, arn: str) -> bool:
    return _bare(_text(rule, "Queue")) == _bare(arn)


def _bare(arn: str) -> str:
    """An ARN without its region, which the server fills in when it knows one: arn:minio:sqs:REGION:name:webhook."""
    parts = arn.split(":")
    return ":".join([*parts[:3], "", *parts[4:]]) if len(parts) > 4 else arn


def _events(rule: ElementTree.Element) -> set[str]:
    return {child.text or "" for child in rule if _name(child) == "Event"}


def _filters(rule: ElementTree.Element) -> list[tuple[str, str]]:
    found = []
    for entry in rule.iter():
        if _name(entry) == "FilterRule":
            found.append((_text(entry, "Name").lower(), _text(entry, "Value")))
    return sorted(found)


def _text(parent: ElementTree.Element, name: str) -> str:
    return next((child.text or "" for child in parent if _name(child) == name), "")


def _name(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _sendable(prefix: str) -> str:
    """The prefix as far as a rule can say it: the server refuses backslashes and dot segments, XML has no control
    characters. A shorter one sends more events, which harm nobody."""
    kept = "".join(_until(prefix))
    parts = kept.split("/")
    bad = next((at for at, part in enumerate(parts) if part in (".", "..")), None)
    return kept if bad is None else "".join(f"{part}/" for part in parts[:bad])


def _until(prefix: str) -> Iterator[str]:
    for character in prefix:
        if character < " " or character in "\\\x7f\ufffe\uffff":
            return
        yield character
