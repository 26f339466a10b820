"""Invoices and receipts: drawn, then scanned or photographed."""

from __future__ import annotations

from random import Random

import cv2
import numpy as np
import trade
from canvas import GREY, Canvas, Colour, grain, shade, turn

_LABELS = {
    "en": ("Invoice", "Bill to", "Number", "Date", "Qty", "Description", "Price", "Amount", "Subtotal", "VAT", "Total"),
    "de": ("Rechnung", "An", "Nummer", "Datum", "Menge", "Leistung", "Preis", "Betrag", "Summe", "MwSt", "Gesamt"),
    "fr": (
        "Facture",
        "Client",
        "Numero",
        "Date",
        "Qte",
        "Designation",
        "Prix",
        "Montant",
        "Sous-total",
        "TVA",
        "Total",
    ),
}
_LANGUAGE = {"CH": "de", "DE": "de", "GB": "en", "FR": "fr", "NL": "en", "IT": "en"}
_ACCENTS: tuple[Colour, ...] = ((120, 62, 24), (46, 92, 30), (36, 36, 148), (92, 40, 92), (60, 60, 60))


def invoice(rng: Random, noise: np.random.Generator) -> tuple[np.ndarray, tuple[str, ...]]:
    """Give an invoice on A4 at about 100 dots per inch, as a scanner sees it, and words that stand on it."""
    company = rng.choice(trade.COMPANIES)
    customer = rng.choice(trade.CUSTOMERS)
    accent = rng.choice(_ACCENTS)
    title, to, number, date, qty, what, price, amount, subtotal, vat, total = _LABELS[_LANGUAGE[company.country]]
    code = f"{rng.randint(2023, 2025)}-{rng.randint(10000, 99999)}"
    wares = trade.items(rng, trade.WARES, rng.randint(2, 4), 9)
    net = round(sum(item.amount for item in wares), 2)
    tax = round(net * company.tax / 100, 2)

    page = Canvas(850, 1202, (252, 253, 253))
    left, right = 70, 780
    _letterhead(page, company, accent, left, right)
    page.text(left, 222, f"{to}:", 15, colour=GREY)
    for line, text in enumerate(customer):
        page.text(left, 248 + 25 * line, text, 18)
    page.text(left, 376, title, 34, 600, accent)
    for line, (label, value) in enumerate(
        ((number, code), (date, trade.day(rng)), ("Ref", f"K{rng.randint(100, 999)}"))
    ):
        page.text(560, 248 + 25 * line, label, 16, colour=GREY)
        page.text(right, 248 + 25 * line, value, 17, 500, align="right")

    y = 432
    page.box(left - 8, y - 24, right + 8, y + 10, accent)
    for x, text, align in ((left, qty, "left"), (150, what, "left"), (640, price, "right"), (right, amount, "right")):
        page.text(x, y, text, 16, 600, (255, 255, 255), align=align)
    for row, item in enumerate(wares):
        y += 40
        if row % 2:
            page.box(left - 8, y - 27, right + 8, y + 12, (244, 243, 240))
        page.text(left + 8, y, str(item.count), 17)
        page.text(150, y, item.text, 17)
        page.text(640, y, f"{item.price:,.2f}", 17, align="right")
        page.text(right, y, f"{item.amount:,.2f}", 17, align="right")
    page.rule(left - 8, right + 8, y + 26, 2, accent)
    for text, value, weight in (
        (subtotal, net, 400),
        (f"{vat} {company.tax:g}%", tax, 400),
        (f"{total} {company.currency}", net + tax, 700),
    ):
        y += 40 if weight == 400 else 46
        page.text(640, y + 22, text, 17 if weight == 400 else 21, weight, align="right")
        page.text(right, y + 22, f"{value:,.2f}", 17 if weight == 400 else 21, weight, align="right")
    _footer(page, company, rng, left, right)

    pixels = turn(page.pixels, rng.uniform(-0.8, 0.8), (236, 238, 238))
    pixels = grain(shade(pixels, noise, 0.10), noise, 3.0)
    return pixels, (company.name.split()[0], code, wares[0].text.split()[0], f"{net + tax:,.2f}", "IBAN")


def _letterhead(page: Canvas, company: trade.Company, accent: Colour, left: int, right: int) -> None:
    """Draw the mark, the name and the address at the top."""
    cv2.circle(page.pixels, (left + 26, 86), 26, accent, -1, cv2.LINE_AA)
    cv2.ellipse(page.pixels, (left + 26, 96), (22, 10), 0, 180, 360, (255, 255, 255), 3, cv2.LINE_AA)
    page.text(left + 68, 98, company.name, 29, 700, accent)
    page.text(right, 132, f"{company.street}  |  {company.town}", 15, colour=GREY, align="right")
    page.rule(left, right, 150, 1, accent)


def _footer(page: Canvas, company: trade.Company, rng: Random, left: int, right: int) -> None:
    """Draw the bank account, the terms, and the line at the bottom."""
    y = page.height - 150
    page.text(left, y, f"IBAN {trade.iban(rng, company.country)}", 17, 500)
    page.text(left, y + 28, f"Payable within {rng.choice((10, 14, 30))} days. Thank you!", 16, face="italic")
    page.rule(left, right, y + 58, 1, GREY)
    page.text((left + right) // 2, y + 84, f"{company.name} - {company.town}", 13, colour=GREY, align="centre")


def receipt(rng: Random, noise: np.random.Generator) -> tuple[np.ndarray, tuple[str, ...]]:
    """Give a till receipt that lies a little askew on a table, and words that stand on it."""
    shop, address, currency = rng.choice(trade.SHOPS)
    goods = trade.items(rng, trade.GOODS[shop], rng.randint(2, 4), 3)
    total = round(sum(item.amount for item in goods), 2)
    columns, step, size = 30, 13, 19
    lines: list[tuple[str, int]] = [
        ("", 400),
        *[(text.center(columns), 400) for text in address.split(", ")],
        ("", 400),
    ]
    lines.append((f"{trade.day(rng)}".ljust(20) + f"{rng.randint(8, 19):02d}:{rng.randint(0, 59):02d}".rjust(10), 400))
    lines.append((f"Till {rng.randint(1, 6)}".ljust(20) + f"#{rng.randint(1000, 9999)}".rjust(10), 400))
    lines.append(("-" * columns, 400))
    lines += [(f"{i.count} x {i.text}".ljust(21) + f"{i.amount:.2f}".rjust(9), 400) for i in goods]
    lines += [("-" * columns, 400), (f"TOTAL {currency}".ljust(20) + f"{total:.2f}".rjust(10), 700)]
    lines += [(rng.choice(("CARD", "CASH")).ljust(20) + f"{total:.2f}".rjust(10), 400), ("", 400)]
    lines.append(("THANK YOU - COME AGAIN".center(columns), 400))

    paper = Canvas(columns * step + 50, 130 + 30 * len(lines) + 70, (243, 246, 247))
    paper.text(paper.width // 2, 70, shop, 32, 700, align="centre")
    y = 92
    for text, weight in lines:
        y += 30
        paper.typed(25, y, text, step, size, weight)
    _barcode(paper, rng, y + 26)

    margin = 50
    table = Canvas(
        paper.width + 2 * margin, paper.height + 2 * margin, rng.choice(((58, 84, 112), (70, 74, 78), (48, 66, 92)))
    )
    wood = cv2.resize(noise.normal(0, 9, (table.height, 6)), (table.width, table.height), interpolation=cv2.INTER_CUBIC)
    table.pixels = np.clip(table.pixels + wood[..., None], 0, 255).astype(np.uint8)
    sheet = table.pixels.copy()
    sheet[margin + 8 : margin + 8 + paper.height, margin + 8 : margin + 8 + paper.width] //= 2
    sheet = cv2.GaussianBlur(sheet, (0, 0), 5)
    sheet[margin : margin + paper.height, margin : margin + paper.width] = shade(paper.pixels, noise, 0.16)
    middle = table.pixels[5, 5]
    pixels = turn(sheet, rng.uniform(-2.5, 2.5), (int(middle[0]), int(middle[1]), int(middle[2])))
    pixels = grain(cv2.GaussianBlur(pixels, (0, 0), 0.7), noise, 5.0)
    return pixels, (shop.split()[-1], "TOTAL", f"{total:.2f}", max(goods[0].text.split(), key=len))


def _barcode(paper: Canvas, rng: Random, top: int) -> None:
    x = 90
    while x < paper.width - 92:
        bar = rng.choice((2, 2, 3, 5))
        paper.box(x, top, x + bar - 1, top + 46, (30, 28, 28))
        x += bar + rng.choice((2, 3, 4))
