"""S3 objects: one interface, the real store, and nothing of the drivers in sight.

`open_store(settings)` gives an `S3Store`; `tidemill.testing.MemoryStore` is its twin in memory. Importing this package
costs nothing: libcurl and the minio SDK come with the first store that is opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.store.api import Downloaded, ObjectInfo, Store, Unfinished

if TYPE_CHECKING:
    from tidemill.settings import StoreSettings
    from tidemill.store.s3 import S3Store

__all__ = ["Downloaded", "ObjectInfo", "Store", "Unfinished", "open_store"]


def open_store(settings: StoreSettings) -> S3Store:
    """The store of the settings. Nothing is sent yet. Raises `InvalidSpec` for an endpoint that is no address."""
    from tidemill.store.s3 import S3Store

    return S3Store(settings)
