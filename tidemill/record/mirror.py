"""The functions in the ledger are a mirror of those in the bucket, which has the last word.

Two who change a function at the same moment may come to the ledger in another order than to the bucket. So each of them
looks at the bucket again after it wrote to the ledger, until both agree. Who dies in between leaves it to placement,
which compares all functions now and then.
"""

from __future__ import annotations

from tidemill.errors import LedgerUnavailable
from tidemill.ledger.api import Ledger
from tidemill.record import keys
from tidemill.record.damage import damage_skipped
from tidemill.record.record import Record

_LOOKS = 10


def mirror_function(ledger: Ledger, record: Record, name: str, fence: int | None = None) -> None:
    """Let the ledger have a function as the bucket has it, or have none.

    Raises:
        TidemillError: its record is damaged, and the ledger keeps what it has.
        StoreUnavailable, LedgerUnavailable: the ledger may lack it (also: the fence is old); call again.
    """
    for _ in range(_LOOKS):
        here = ledger.function(name)
        stored = record.get_function(name)
        wanted = stored if stored is not None and stored.deleted_at is None else None
        if here == wanted:
            return
        if wanted is None:
            ledger.remove_function(name, fence=fence)
        elif not ledger.put_function(wanted, fence=fence):
            break
    raise LedgerUnavailable(f"the ledger's mirror of the function {name} is not complete", hint="Try again.")


def mirror_functions(ledger: Ledger, record: Record, fence: int | None = None) -> None:
    """Let the ledger have the functions of the bucket, and no others. Those with a damaged record stay as they are.

    Raises:
        StoreUnavailable, LedgerUnavailable: not complete (also: the fence is old); call again.
    """
    before = ledger.functions()  # the bucket is written first, so what is here is there
    stored = {function.name: function for function in record.functions() if function.deleted_at is None}
    damaged = record.damaged()
    for name in sorted(before.keys() | stored.keys()):
        if before.get(name) != stored.get(name) and keys.function(name) not in damaged:
            with damage_skipped():
                mirror_function(ledger, record, name, fence)
