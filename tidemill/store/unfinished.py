"""Multipart uploads that were begun and neither completed nor aborted: no listing of objects shows them.

Asked for without `encoding-type`: SeaweedFS says that it encodes the keys and does not. And without markers, whose
forms differ from store to store: one answer holds a thousand, and who drops some finds the next ones behind.
"""

from __future__ import annotations

import datetime as dt
import xml.etree.ElementTree as ElementTree

from tidemill.errors import NotFound
from tidemill.store.api import Unfinished
from tidemill.store.signed import SignedRequests, unavailable


def unfinished(requests: SignedRequests, bucket: str) -> list[Unfinished]:
    """Some of the bucket's unfinished uploads, all when they are fewer than a thousand."""
    return parse(bucket, requests.send("GET", bucket, query={"uploads": ""}).data)


def drop(requests: SignedRequests, bucket: str, upload: Unfinished) -> None:
    """Drop the parts of an upload; one that is gone is fine."""
    try:
        requests.send("DELETE", bucket, upload.key, query={"uploadId": upload.upload_id})
    except NotFound:
        return


def parse(bucket: str, body: bytes) -> list[Unfinished]:
    """The uploads of one answer. Raises `StoreUnavailable` for a garbled one."""
    try:
        root = ElementTree.fromstring(body)  # noqa: S314 - the store that we trust with all data; expat knows the bombs
        space = root.tag[: root.tag.index("}") + 1] if root.tag.startswith("{") else ""
        found = []
        for item in root.iter(f"{space}Upload"):
            fields = {child.tag[len(space) :]: child.text or "" for child in item}
            begun_at = dt.datetime.fromisoformat(fields["Initiated"]).timestamp()
            found.append(Unfinished(fields["Key"], fields["UploadId"], begun_at))
        return found
    except (ElementTree.ParseError, KeyError, ValueError) as error:
        raise unavailable(f"the list of unfinished uploads of {bucket} is garbled: {error}") from error
