"""A sheet of pixels with text on it, and what a scanner or a camera does to it.

Pixels are uint8 arrays of shape (height, width, 3) in BGR. The two fonts are the ones that OpenCV 5 carries (`sans` and
`italic`, weights 200 to 800), so that the pictures are the same on every machine.
"""

from __future__ import annotations

from typing import Literal

import cv2
import numpy as np

Colour = tuple[int, int, int]
INK: Colour = (38, 34, 32)
GREY: Colour = (120, 116, 112)
_FACES = {name: cv2.FontFace(name) for name in ("sans", "italic")}


class Canvas:
    """A sheet of one colour; positions are in pixels, `y` is the line on which the letters stand."""

    def __init__(self, width: int, height: int, colour: Colour = (255, 255, 255)) -> None:
        self.pixels = np.full((height, width, 3), colour, np.uint8)

    @property
    def width(self) -> int:
        return int(self.pixels.shape[1])

    @property
    def height(self) -> int:
        return int(self.pixels.shape[0])

    def text(
        self,
        x: int,
        y: int,
        text: str,
        size: int = 18,
        weight: int = 400,
        colour: Colour = INK,
        align: Literal["left", "right", "centre"] = "left",
        face: Literal["sans", "italic"] = "sans",
    ) -> int:
        """Write one line and give its width."""
        width = text_width(text, size, weight, face)
        left = {"left": x, "right": x - width, "centre": x - width // 2}[align]
        cv2.putText(self.pixels, text, (left, y), colour, _FACES[face], size, weight)
        return width

    def typed(self, x: int, y: int, text: str, step: int, size: int, weight: int = 400, colour: Colour = INK) -> None:
        """Write one line as a till printer does: every character `step` pixels wide."""
        for place, char in enumerate(text):
            if char != " ":
                self.text(x + place * step + step // 2, y, char, size, weight, colour, align="centre")

    def rule(self, left: int, right: int, y: int, thickness: int = 1, colour: Colour = INK) -> None:
        cv2.line(self.pixels, (left, y), (right, y), colour, thickness)

    def box(self, left: int, top: int, right: int, bottom: int, colour: Colour, thickness: int = -1) -> None:
        cv2.rectangle(self.pixels, (left, top), (right, bottom), colour, thickness)


def text_width(text: str, size: int, weight: int = 400, face: Literal["sans", "italic"] = "sans") -> int:
    (_, _, width, _) = cv2.getTextSize((0, 0), text, (0, 0), _FACES[face], size, weight)
    return int(width)


def grain(pixels: np.ndarray, rng: np.random.Generator, strength: float) -> np.ndarray:
    """Add the noise of a sensor: one value per pixel, and half as much per colour."""
    height, width = pixels.shape[:2]
    light = rng.standard_normal((height, width, 1), np.float32) * np.float32(strength)
    tint = rng.standard_normal((height, width, 3), np.float32) * np.float32(strength / 2)
    return np.clip(pixels + light + tint, 0, 255).astype(np.uint8)


def shade(pixels: np.ndarray, rng: np.random.Generator, depth: float) -> np.ndarray:
    """Darken smoothly, by up to `depth` (0 to 1), as uneven light does."""
    height, width = pixels.shape[:2]
    coarse = 1 - depth * rng.random((3, 3))
    light = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    return np.clip(pixels * light[..., None], 0, 255).astype(np.uint8)


def turn(pixels: np.ndarray, degrees: float, edge: Colour) -> np.ndarray:
    """Turn by a small angle around the middle; what comes into view has the colour `edge`."""
    height, width = pixels.shape[:2]
    matrix = cv2.getRotationMatrix2D((width / 2, height / 2), degrees, 1.0)
    return cv2.warpAffine(pixels, matrix, (width, height), flags=cv2.INTER_CUBIC, borderValue=edge)


def gradient(width: int, height: int, top: Colour, bottom: Colour) -> np.ndarray:
    """Give pixels that go from one colour at the top to another at the bottom."""
    steps = np.linspace(0, 1, height)[:, None, None]
    rows = np.asarray(top) * (1 - steps) + np.asarray(bottom) * steps
    return np.repeat(rows, width, axis=1).astype(np.uint8)


def paste(scene: np.ndarray, piece: np.ndarray, corners: list[tuple[float, float]]) -> None:
    """Put a flat piece into a scene, its four corners (clockwise from top left) where given: perspective."""
    height, width = piece.shape[:2]
    source = np.array([(0, 0), (width, 0), (width, height), (0, height)], np.float32)
    matrix = cv2.getPerspectiveTransform(source, np.array(corners, np.float32))
    size = (scene.shape[1], scene.shape[0])
    warped = cv2.warpPerspective(piece, matrix, size, flags=cv2.INTER_AREA)
    mask = cv2.warpPerspective(np.full((height, width), 255, np.uint8), matrix, size, flags=cv2.INTER_LINEAR)
    part = mask[..., None] / 255
    scene[:] = (warped * part + scene * (1 - part)).astype(np.uint8)
