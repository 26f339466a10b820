"""Who calls, and what they may use."""

from tidemill_gateway.auth.owners import Owner, Owners, bearer

__all__ = ["Owner", "Owners", "bearer"]
