"""File names that people really have, and that break systems which do not expect them.

None begins with a dot or looks like a temporary file: such objects are ignored. The longest name takes 200 bytes, so
that a local folder can hold it too.
"""

from __future__ import annotations

import unicodedata

ODD_STEMS = (
    "Rechnung März (Kopie 2)",
    "a+b=c",
    "100% sure %2F %20",
    unicodedata.normalize("NFC", "Müller_Größe"),
    unicodedata.normalize("NFD", "Müller_Größe"),
    "🧾 receipt 🎉",
    'it\'s "quoted" `here`',
    "請求書 2024年",
    "-rf leading dash",
    "what#is?this&that;ok",
    "two  spaces and a trailing one ",
    "very-long-" + "x" * 186,
    "back\\slash",
    "comma, semi; [brackets] {braces}",
    "مرحبا עולם",
)
