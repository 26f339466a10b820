"""Small files of other kinds than pictures, made by hand, for the function `filetype`."""

from __future__ import annotations

import gzip
import io
import json
import math
import sqlite3
import struct
import wave
import zipfile
from random import Random

import trade


def files(rng: Random) -> list[tuple[str, bytes, str]]:
    """Give (file name, content, the label that Magika has for it); most of the names lie about the content."""
    orders = [
        {"id": rng.randint(10**5, 10**6), "ware": text, "price": price, "tags": ["new", "stock"]}
        for text, price in trade.WARES
    ]
    table = "order;ware;price\n" + "".join(f"{o['id']};{o['ware']};{o['price']:.2f}\n" for o in orders)
    page = "".join(f"<tr><td>{o['id']}</td><td>{o['ware']}</td></tr>\n" for o in orders)
    settings = "".join(f'  - id: {o["id"]}\n    ware: "{o["ware"]}"\n    price: {o["price"]}\n' for o in orders)
    return [
        ("contract.dat", pdf([f"Contract {rng.randint(100, 999)}", "between two parties", "signed in Basel"]), "pdf"),
        ("orders", json.dumps(orders, indent=1).encode(), "json"),
        ("script.txt", PYTHON.encode(), "python"),
        ("bundle.jpg", archive({"readme.txt": "Read me first.\n" * 9, "table.csv": table}), "zip"),
        ("voice memo.mp4", tone(), "wav"),
        ("page 1 of 2.bin", f"<!DOCTYPE html>\n<html><body><table>\n{page}</table></body></html>\n".encode(), "html"),
        ("stock+prices", b"PRAGMA foreign_keys=ON;\n" + sql(orders).encode(), "sql"),
        ("backup", gzip.compress(table.encode(), mtime=0), "gzip"),
        ("Übersicht.unknown", database(orders), "sqlite"),
        ("-n.conf", f"version: 2\norders:\n{settings}".encode(), "yaml"),
        ("deploy", SHELL.encode(), "shell"),
        ("main.pdf", C.encode(), "c"),
    ]


def pdf(lines: list[str]) -> bytes:
    """Give a PDF of one page with a correct table of object positions."""
    text = "BT /F1 18 Tf 72 760 Td 24 TL " + " ".join(f"({line}) Tj T*" for line in lines) + " ET"
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents 4 0 R "
        "/Resources << /Font << /F1 5 0 R >> >> >>",
        f"<< /Length {len(text)} >>\nstream\n{text}\nendstream",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    out = bytearray(b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n")
    places = []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n".encode()
    table = len(out)
    out += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n".encode()
    out += b"".join(f"{place:010d} 00000 n \n".encode() for place in places)
    out += f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{table}\n%%EOF\n".encode()
    return bytes(out)


def archive(members: dict[str, str]) -> bytes:
    """Give a ZIP file; its members carry a fixed date, so that the bytes are the same each time."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as target:
        for name, text in members.items():
            target.writestr(zipfile.ZipInfo(name, (2024, 5, 1, 12, 0, 0)), text, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def tone() -> bytes:
    """Give half a second of a 440 Hz tone as a WAV file: one channel, 8,000 samples of 16 bits per second."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as target:
        target.setnchannels(1)
        target.setsampwidth(2)
        target.setframerate(8000)
        waves = (int(12000 * math.sin(2 * math.pi * 440 * at / 8000)) for at in range(4000))
        target.writeframes(b"".join(struct.pack("<h", height) for height in waves))
    return buffer.getvalue()


def sql(orders: list[dict[str, object]]) -> str:
    rows = "".join(
        f"INSERT INTO orders (id, ware, price) VALUES ({o['id']}, '{o['ware']}', {o['price']});\n" for o in orders
    )
    return f"CREATE TABLE orders (id INTEGER PRIMARY KEY, ware TEXT NOT NULL, price REAL);\n{rows}"


def database(orders: list[dict[str, object]]) -> bytes:
    connection = sqlite3.connect(":memory:")
    connection.executescript(sql(orders))
    content = connection.serialize()
    connection.close()
    return content


PYTHON = '''"""Count the words of a file."""

import sys
from collections import Counter
from pathlib import Path


def count(path: Path) -> Counter[str]:
    words = Counter()
    for line in path.read_text().splitlines():
        words.update(word.strip(".,").lower() for word in line.split())
    return words


if __name__ == "__main__":
    for word, times in count(Path(sys.argv[1])).most_common(10):
        print(f"{times:6d} {word}")
'''
SHELL = """#!/bin/sh
set -eu
for host in alpha beta gamma; do
  if ! ssh "$host" true; then
    echo "no answer from $host" >&2
    continue
  fi
  rsync -a --delete ./site/ "$host":/srv/www/
done
"""
C = """#include <stdio.h>
#include <stdlib.h>

struct node { int value; struct node *next; };

static struct node *push(struct node *head, int value) {
    struct node *fresh = malloc(sizeof *fresh);
    if (fresh == NULL) abort();
    fresh->value = value;
    fresh->next = head;
    return fresh;
}

int main(int argc, char **argv) {
    struct node *list = NULL;
    for (int i = 0; i < argc; i++) list = push(list, i);
    while (list != NULL) { printf("%d %s\\n", list->value, argv[list->value]); list = list->next; }
    return 0;
}
"""
