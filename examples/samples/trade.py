"""Invented businesses, wares and numbers for invoices and receipts."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class Company:
    name: str
    street: str
    town: str
    country: str  # of its IBAN
    currency: str
    tax: float  # percent


@dataclass(frozen=True)
class Item:
    count: int
    text: str
    price: float  # of one

    @property
    def amount(self) -> float:
        return round(self.count * self.price, 2)


COMPANIES = (
    Company("Alpenblick Logistik GmbH", "Hafenstrasse 14", "8005 Zürich", "CH", "CHF", 8.1),
    Company("Nordlicht Werkzeuge AG", "Am Fleet 27", "20457 Hamburg", "DE", "EUR", 19.0),
    Company("Brightwater Supplies Ltd", "41 Quay Lane", "Bristol BS1 4QA", "GB", "GBP", 20.0),
    Company("Atelier Roche & Fils", "8 rue des Tanneurs", "69005 Lyon", "FR", "EUR", 20.0),
    Company("Van Houtum Optiek BV", "Kade 112", "3011 Rotterdam", "NL", "EUR", 21.0),
    Company("Tecnica Lombarda SpA", "Via Torricelli 5", "20136 Milano", "IT", "EUR", 22.0),
    Company("Kestrel Aerial Survey", "9 Foundry Row", "Leeds LS2 7DJ", "GB", "GBP", 20.0),
    Company("Seefeld Medizintechnik AG", "Uferweg 3", "6300 Zug", "CH", "CHF", 8.1),
)
CUSTOMERS = (
    ("Marta Lindqvist", "Storgatan 18", "411 38 Göteborg"),
    ("Praxis Dr. Hartmann", "Lindenallee 6", "50668 Köln"),
    ("Oakfield Primary School", "Mill Road 2", "Cambridge CB1 2AD"),
    ("Hotel Bellevue", "Quai du Lac 40", "1006 Lausanne"),
    ("Stadtwerke Bergheim", "Ringstrasse 88", "4058 Basel"),
    ("Jonas Ferreira", "Rua do Sol 15", "1200 Lisboa"),
)
WARES = (
    ("Torque wrench 40-200 Nm", 89.9),
    ("Pallet transport, 3 stops", 412.0),
    ("Safety gloves, size 9", 6.4),
    ("Laser level with tripod", 249.0),
    ("Maintenance contract Q3", 1180.0),
    ("Cable drum 50 m", 74.5),
    ("Filter cartridge F7", 31.2),
    ("Survey flight, 2 hours", 640.0),
    ("Cutting disc 125 mm", 2.95),
    ("On-site engineer, hour", 118.0),
    ("Storage box 60 litres", 18.75),
    ("Calibration certificate", 55.0),
    ("Replacement lens 35 mm", 138.4),
    ("Stainless bolts M8, box", 22.1),
)
SHOPS = (
    ("CAFE MERIDIAN", "Marktplatz 4, 4051 Basel", "CHF"),
    ("GREEN GROCER", "17 Station Road, York", "GBP"),
    ("BAECKEREI SOMMER", "Hauptstrasse 9, Mainz", "EUR"),
    ("LIBRERIA AURORA", "Via Roma 31, Torino", "EUR"),
    ("HARBOUR HARDWARE", "2 Dock Street, Hull", "GBP"),
    ("PHARMACIE DU PONT", "5 rue Basse, Geneve", "CHF"),
)
GOODS = {
    "CAFE MERIDIAN": (("Espresso", 3.9), ("Cappuccino", 5.2), ("Croissant", 2.8), ("Orange juice", 6.0)),
    "GREEN GROCER": (("Bananas 1.2kg", 1.74), ("Tomatoes", 2.35), ("Oat milk 1L", 1.95), ("Free eggs x6", 2.6)),
    "BAECKEREI SOMMER": (("Roggenbrot", 4.3), ("Laugenbrezel", 1.2), ("Apfelstrudel", 3.6), ("Filterkaffee", 2.9)),
    "LIBRERIA AURORA": (("Atlante storico", 34.0), ("Quaderno A5", 4.5), ("Matite 12pz", 7.8), ("Segnalibro", 2.0)),
    "HARBOUR HARDWARE": (("Paint brush 50", 6.49), ("Sandpaper P120", 3.2), ("Wood glue", 5.75), ("Hinges pair", 4.1)),
    "PHARMACIE DU PONT": (("Sirop 200ml", 12.4), ("Pansements", 5.9), ("Vitamine C", 9.8), ("Gel mains", 4.6)),
}


def iban(rng: Random, country: str) -> str:
    """Give an invented account number of a country with its two valid check digits (ISO 13616), in groups of four."""
    length, letters = {"CH": (17, 0), "DE": (18, 0), "GB": (18, 4), "FR": (23, 0), "NL": (14, 4), "IT": (23, 1)}[
        country
    ]
    bank = "".join(rng.choice("BCDFGHKLMNPRSTVX") for _ in range(letters))
    account = bank + "".join(rng.choice("0123456789") for _ in range(length - letters))
    number = int("".join(str(int(char, 36)) for char in account + country + "00"))
    whole = f"{country}{98 - number % 97:02d}{account}"
    return " ".join(whole[at : at + 4] for at in range(0, len(whole), 4))


def day(rng: Random) -> str:
    return f"{rng.randint(1, 28):02d}.{rng.randint(1, 12):02d}.20{rng.randint(23, 25)}"


def items(rng: Random, wares: tuple[tuple[str, float], ...], count: int, most: int) -> list[Item]:
    return [Item(rng.randint(1, most), text, price) for text, price in rng.sample(wares, min(count, len(wares)))]
