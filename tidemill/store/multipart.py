"""Large objects in parts: uploads in constant memory, and copies that the store does piece by piece.

Three parts of 8 MiB travel at a time, so an upload holds 24 MiB (plus one being read). The conditions of the whole put
go with its last request. An upload that fails is aborted; what a killed process leaves is invisible. In the platform
bucket retention drops it, in others the store's own lifecycle rule for unfinished uploads does.
"""

from __future__ import annotations

import concurrent.futures
import html
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO

import structlog

from tidemill.errors import TidemillError
from tidemill.store.listing import bare
from tidemill.store.signed import SignedRequests, unavailable

PART_BYTES = 8 * 2**20
# A piece of a server-side copy must end within the slow time-out also at 5 MB/s.
COPY_BYTES = 256 * 2**20
MAX_PARTS = 10_000
AT_ONCE = 3
log = structlog.get_logger(__name__)


def part_size(total: int | None) -> int:
    """Bytes of a part: more than 8 MiB only where 10,000 of them would not hold the object."""
    return max(PART_BYTES, -(-(total or 0) // MAX_PARTS))


def blocks(body: BinaryIO, size: int) -> Iterator[bytes]:
    """The content in blocks of exactly `size` bytes, the last one shorter."""
    block = bytearray()
    while True:
        data = body.read(size - len(block))
        block += data
        if len(block) == size or (not data and block):
            yield bytes(block)
            block.clear()
        if not data:
            return


class Upload:
    """One multipart upload."""

    def __init__(self, requests: SignedRequests, bucket: str, key: str, headers: Mapping[str, str]) -> None:
        self._requests = requests
        self._bucket = bucket
        self._key = key
        answer = requests.send("POST", bucket, key, query={"uploads": ""}, headers=headers)
        self._id = html.unescape(_text(answer.data, "UploadId"))

    def parts(self, contents: Iterable[bytes]) -> list[str]:
        """Sends the parts, three at a time, and gives their ETags."""
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE, thread_name_prefix="upload") as threads:
            running: list[concurrent.futures.Future[str]] = []
            etags: list[str] = []
            try:
                for content in contents:
                    if len(running) == AT_ONCE:
                        etags.append(running.pop(0).result())
                    running.append(threads.submit(self._part, len(etags) + len(running) + 1, content))
                etags += [part.result() for part in running]
            finally:
                for part in running:
                    part.cancel()
            return etags

    def _part(self, number: int, content: bytes) -> str:
        query = {"partNumber": str(number), "uploadId": self._id}
        answer = self._requests.send("PUT", self._bucket, self._key, query=query, body=content)
        return bare(answer.headers.get("etag", ""))

    def copy_parts(self, source: Mapping[str, str], size: int, piece: int = COPY_BYTES) -> list[str]:
        """Lets the store copy an object of `size` bytes; `source` are the headers that name and pin it."""
        etags: list[str] = []
        for start in range(0, size, piece):
            headers = {**source, "x-amz-copy-source-range": f"bytes={start}-{min(start + piece, size) - 1}"}
            query = {"partNumber": str(len(etags) + 1), "uploadId": self._id}
            answer = self._requests.send("PUT", self._bucket, self._key, query=query, headers=headers, slow=True)
            etags.append(bare(html.unescape(_text(answer.data, "ETag"))))
        return etags

    def complete(self, etags: list[str], conditions: Mapping[str, str]) -> str:
        """Makes the object visible and gives its ETag."""
        parts = "".join(
            f'<Part><PartNumber>{number}</PartNumber><ETag>"{html.escape(etag)}"</ETag></Part>'
            for number, etag in enumerate(etags, 1)
        )
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        headers = {"Content-Type": "application/xml", **conditions}
        answer = self._requests.send(
            "POST", self._bucket, self._key, query={"uploadId": self._id}, headers=headers, body=body, slow=True
        )
        return bare(html.unescape(_text(answer.data, "ETag")))

    def abort(self) -> None:
        """Drops the parts. A store that is gone keeps them until somebody drops what is left behind."""
        try:
            self._requests.send("DELETE", self._bucket, self._key, query={"uploadId": self._id})
        except TidemillError as error:
            # The reason why the upload failed is on its way to the caller and matters more.
            log.warning("store.abort_failed", bucket=self._bucket, error=str(error))


def _text(body: bytes, name: str) -> str:
    """The text of an element. A 200 may carry an error inside: the store found it after the headers were sent."""
    found = re.search(rf"<{name}>([^<]*)</{name}>".encode(), body)
    if found is None:
        raise unavailable(f"the answer has no {name}: {body[:300].decode('utf-8', 'replace')}")
    return found[1].decode()
