"""Real files to train on: JPEG crops of the two photographs that scikit-learn ships, augmented by Pillow."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageEnhance
from sklearn.datasets import load_sample_images

CROP_PIXELS = 256
INPUT_PIXELS = 224
"""Side of what the network sees."""


def write_crops(folder: Path, count: int = 1500, *, seed: int = 0) -> list[Path]:
    """Write square crops of the photographs once and return the files, the photographs taking turns.

    Args:
        folder: Where they go; the folder name of each file is its label.
        count: How many.
        seed: Of the places they are cut from.

    Raises:
        OSError: The folder cannot be written.
    """
    photographs = load_sample_images()
    names = [Path(name).stem for name in photographs.filenames]
    files = [folder / names[i % len(names)] / f"{i:05d}.jpg" for i in range(count)]
    if all(file.exists() for file in files):
        return files
    # Made beside and renamed, so that an interrupted first run leaves no half-written image behind.
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    images = [Image.fromarray(pixels) for pixels in photographs.images]
    place = random.Random(seed)  # noqa: S311 - no secret
    for i, file in enumerate(files):
        target = unfinished / file.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        _crop(images[i % len(images)], CROP_PIXELS, place).save(target, quality=90)
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
    return files


def _crop(image: Image.Image, side: int, place: random.Random) -> Image.Image:
    left, top = place.randint(0, image.width - side), place.randint(0, image.height - side)
    return image.crop((left, top, left + side, top + side))


class Crops:
    """The images and their labels as a map-style dataset.

    Args:
        files: Image files; two that share a folder share a label.
        augment: Whether to cut, flip and recolour at random, as for training.
    """

    def __init__(self, files: Sequence[Path], *, augment: bool) -> None:
        self.files = list(files)
        self.augment = augment
        self.labels = sorted({file.parent.name for file in self.files})

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        file = self.files[index]
        with Image.open(file) as stored:
            image = stored.convert("RGB")
        image = _augment(image) if self.augment else image.resize((INPUT_PIXELS, INPUT_PIXELS))
        pixels = np.asarray(image, dtype=np.float32).transpose(2, 0, 1) / 255.0
        return pixels, self.labels.index(file.parent.name)


def _augment(image: Image.Image) -> Image.Image:
    # The module's generator, because DataLoader seeds it differently in each worker.
    side = random.randint(CROP_PIXELS // 2, CROP_PIXELS)  # noqa: S311
    box = _crop(image, side, random.Random(random.getrandbits(32)))  # noqa: S311
    image = box.resize((INPUT_PIXELS, INPUT_PIXELS), Image.Resampling.BICUBIC)
    if random.random() < 0.5:  # noqa: S311
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    for enhance in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        image = enhance(image).enhance(random.uniform(0.6, 1.4))  # noqa: S311
    return image
