"""Pictures like photographs: a landscape, a street at dusk, a parcel on a shelf; each with a sign to read."""

from __future__ import annotations

from random import Random

import cv2
import numpy as np
from canvas import Canvas, Colour, gradient, grain, paste, shade, text_width

WIDTH, HEIGHT = 960, 720
_PLACES = ("HARBOUR", "OLD TOWN", "AIRPORT", "MUSEUM", "STADIUM", "LAKESIDE", "VALLEY", "CENTRAL STATION")
_SHOPS = ("BLUE LANTERN", "CORNER BOOKS", "PIZZERIA ROMA", "BIKE REPAIR", "FLOWER MARKET", "NIGHT CAFE")
_WARNINGS = (("CAUTION", "FALLING ROCKS"), ("PRIVATE", "NO ENTRY"), ("SLOW", "CHILDREN CROSSING"), ("TRAIL", "CLOSED"))


def photo(rng: Random, noise: np.random.Generator) -> tuple[np.ndarray, tuple[str, ...]]:
    """Give a picture of 960 x 720 pixels, and words that stand on it."""
    scene = rng.choice((_landscape, _street, _parcel))
    pixels, words = scene(rng, noise)
    pixels = cv2.GaussianBlur(pixels, (0, 0), rng.uniform(0.6, 1.0))
    return grain(_vignette(pixels), noise, rng.uniform(3.0, 7.0)), words


def _landscape(rng: Random, noise: np.random.Generator) -> tuple[np.ndarray, tuple[str, ...]]:
    """Hills one behind the other, haze, and a sign at the road."""
    sky = rng.choice(
        (((214, 168, 110), (240, 226, 206)), ((120, 120, 226), (170, 208, 250)), ((190, 170, 150), (225, 220, 214)))
    )
    scene = gradient(WIDTH, HEIGHT, *sky)
    cv2.circle(
        scene, (rng.randint(100, 850), rng.randint(70, 200)), rng.randint(26, 44), (232, 244, 255), -1, cv2.LINE_AA
    )
    scene = cv2.GaussianBlur(scene, (0, 0), 6)
    for layer in range(4):
        depth = (layer + 1) / 4
        haze = np.array(sky[1]) * (1 - depth) + np.array((48, 78, 52)) * depth
        _hill(scene, noise, 300 + 90 * layer, 90 - 12 * layer, tuple(int(c) for c in haze))
    first, second = rng.choice(_PLACES), f"{rng.randint(2, 48)} km"
    board, words = _board((first, second), (140, 84, 22), (255, 255, 255)), tuple(first.split())
    if rng.random() < 0.4:
        warning = rng.choice(_WARNINGS)
        board, words = _board(warning, (40, 190, 245), (20, 20, 20)), (*warning[0].split(), *warning[1].split())
    x, y = rng.randint(120, 380), rng.randint(180, 290)
    width = min(board.shape[1], 500)
    height = int(board.shape[0] * width / board.shape[1])
    for post in (0.22, 0.78):
        at = int(x + width * post)
        cv2.line(scene, (at, y + height - 4), (at + 3, HEIGHT), (96, 100, 104), 12)
        cv2.line(scene, (at - 4, y + height - 4), (at - 1, HEIGHT), (150, 154, 158), 3)
    lean = rng.uniform(-14, 14)
    paste(scene, board, [(x, y), (x + width, y + lean), (x + width, y + height - lean / 2), (x, y + height)])
    return shade(scene, noise, 0.15), words


def _hill(scene: np.ndarray, noise: np.random.Generator, level: int, rise: int, colour: Colour) -> None:
    """Draw one ridge with grass on it."""
    knots = noise.uniform(-rise, rise, 7)
    line = np.interp(np.linspace(0, 6, WIDTH), range(7), knots)
    line = cv2.GaussianBlur(line.reshape(1, -1), (0, 0), 40).ravel() + noise.normal(0, 0.8, WIDTH) + level
    below = np.arange(HEIGHT)[:, None] >= line[None, :]
    blades = cv2.resize(noise.normal(0, 10, (HEIGHT // 3, WIDTH // 2)), (WIDTH, HEIGHT))
    scene[below] = np.clip(np.asarray(colour) + blades[..., None], 0, 255).astype(np.uint8)[below]


def _street(rng: Random, noise: np.random.Generator) -> tuple[np.ndarray, tuple[str, ...]]:
    """House fronts at dusk with lit windows, and a shop sign."""
    scene = gradient(WIDTH, HEIGHT, (92, 48, 40), (150, 120, 176))
    x = -20
    while x < WIDTH:
        width, top = rng.randint(150, 260), rng.randint(40, 180)
        wall = tuple(rng.randint(44, 92) for _ in range(3))
        cv2.rectangle(scene, (x, top), (x + width, HEIGHT), wall, -1)
        for wy in range(top + 30, 330, 74):
            for wx in range(x + 22, x + width - 40, 58):
                lit = rng.random() < 0.55
                cv2.rectangle(scene, (wx, wy), (wx + 32, wy + 46), (96, 190, 240) if lit else (66, 52, 46), -1)
                cv2.rectangle(scene, (wx, wy), (wx + 32, wy + 46), (30, 28, 30), 2)
        x += width
    glow = scene.copy()
    cv2.rectangle(glow, (130, 500), (830, 690), (120, 200, 250), -1)
    scene = cv2.addWeighted(cv2.GaussianBlur(glow, (0, 0), 22), 0.6, scene, 0.4, 0)
    cv2.rectangle(scene, (0, 690), (WIDTH, HEIGHT), (50, 46, 48), -1)
    for wx in (170, 400, 630):
        cv2.rectangle(scene, (wx, 520), (wx + 170, 680), (150, 214, 246), -1)
        cv2.rectangle(scene, (wx, 520), (wx + 170, 680), (34, 32, 36), 6)
    name = rng.choice(_SHOPS)
    board = _board((name,), rng.choice(((36, 60, 34), (70, 30, 26), (28, 26, 90))), (206, 236, 250))
    width = 600
    height = int(board.shape[0] * width / board.shape[1])
    left, top, drop = 180, 400, rng.uniform(-16, 16)
    paste(
        scene,
        board,
        [(left, top), (left + width, top + drop), (left + width, top + height + drop), (left, top + height)],
    )
    return shade(scene, noise, 0.2), tuple(name.split())


def _parcel(rng: Random, noise: np.random.Generator) -> tuple[np.ndarray, tuple[str, ...]]:
    """A cardboard box on a shelf, with an address label."""
    scene = gradient(WIDTH, HEIGHT, (150, 156, 160), (104, 110, 116))
    cv2.rectangle(scene, (0, 560), (WIDTH, HEIGHT), (70, 96, 124), -1)
    front = gradient(620, 430, (104, 152, 190), (84, 128, 164))
    front = np.clip(front + noise.normal(0, 5, (430, 1, 1)), 0, 255).astype(np.uint8)
    cv2.rectangle(front, (275, 0), (345, 430), (128, 178, 210), -1)
    code = f"{rng.choice('ABCDEFGH')}{rng.randint(10000, 99999)}"
    town = rng.choice(("ROTTERDAM", "BASEL", "GENOVA", "BRISTOL", "LYON"))
    label = Canvas(420, 240, (246, 248, 248))
    label.text(18, 40, "DELIVER TO", 20, 500)
    label.text(18, 84, f"Warehouse {rng.randint(2, 30)}", 30, 600)
    label.text(18, 124, town, 34, 700)
    label.rule(12, 408, 146, 2)
    label.text(18, 186, f"PARCEL {code}", 28, 600)
    label.text(18, 222, f"{rng.randint(1, 28)}.{rng.randint(1, 9)} kg    FRAGILE", 22, 500)
    front[100:340, 100:520] = label.pixels
    left, top, skew = rng.randint(110, 170), rng.randint(130, 170), rng.uniform(-24, 24)
    shadow = scene.copy()
    cv2.ellipse(shadow, (left + 330, top + 436), (390, 40), 0, 0, 360, (36, 48, 62), -1)
    scene = cv2.addWeighted(cv2.GaussianBlur(shadow, (0, 0), 16), 0.8, scene, 0.2, 0)
    side = gradient(90, 430, (70, 112, 146), (56, 92, 124))
    paste(
        scene,
        side,
        [(left + 618, top + skew), (left + 700, top + skew + 34), (left + 700, top + 396), (left + 618, top + 430)],
    )
    paste(scene, front, [(left, top), (left + 620, top + skew), (left + 620, top + 430), (left, top + 440)])
    return shade(scene, noise, 0.25), ("DELIVER", town, code, "FRAGILE")


def _board(lines: tuple[str, ...], ground: Colour, ink: Colour) -> np.ndarray:
    """Draw a sign with a rim, drawn twice as large as it will stand in the scene."""
    size = 120
    width = max(text_width(line, size, 600) for line in lines) + 140
    board = Canvas(width, 90 + 150 * len(lines), ground)
    board.box(14, 14, width - 15, board.height - 15, ink, 8)
    for row, line in enumerate(lines):
        board.text(width // 2, 160 + 148 * row, line, size, 600, ink, align="centre")
    return cv2.GaussianBlur(board.pixels, (0, 0), 1.2)


def _vignette(pixels: np.ndarray) -> np.ndarray:
    """Darken towards the corners, as a lens does."""
    y, x = np.ogrid[-1 : 1 : HEIGHT * 1j, -1 : 1 : WIDTH * 1j]
    return (pixels * (1 - 0.16 * (x**2 + y**2))[..., None]).astype(np.uint8)
