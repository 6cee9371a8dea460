"""The headspace probe: how fast would this training be with free data, and with how many workers?

Run it with ``python examples/probe.py``; it needs ``pip install 'stallmeter[demo]'`` and takes about 45 s.
From the command line: ``stallmeter probe examples/probe.py:training --sweep-workers auto``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

import stallmeter
from stallmeter.demo.crops import Crops, write_crops
from stallmeter.demo.training import Network


def training(count: int = 1500) -> tuple[Any, Any]:
    """A small network and real JPEG files, decoded in the loop's own thread."""
    files = write_crops(Path("demo-output/crops") if count == 1500 else Path(f"demo-output/crops-{count}"), count)
    crops = Crops(files, augment=True)
    return Network(len(crops.labels)), DataLoader(crops, batch_size=32, shuffle=True)


def main(seconds: float = 3.0, count: int = 1500) -> None:
    module, loader = training(count)
    result = stallmeter.probe(
        module, loader, sweep_workers="auto", sweep_batch_size=[16, 64], seconds=seconds, time_limit_s=90
    )
    print(result)


if __name__ == "__main__":
    main(*(kind(argument) for kind, argument in zip((float, int), sys.argv[1:], strict=False)))
