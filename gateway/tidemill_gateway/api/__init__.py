"""The HTTP API, version 1 (contract: "HTTP, version 1")."""

from tidemill_gateway.api.app import create_app

__all__ = ["create_app"]
