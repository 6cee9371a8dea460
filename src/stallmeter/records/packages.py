"""Packages of which it is known what a step calls them for."""

from __future__ import annotations

import sys

TRAINS_NOTHING = frozenset(
    (
        *("PIL", "cv2", "imageio", "matplotlib", "plotly", "seaborn", "skimage"),
        *("csv", "gzip", "h5py", "json", "logging", "pickle", "shutil", "sqlite3", "tarfile", "yaml", "zipfile"),
        *("pandas", "polars", "pyarrow", "sklearn", "statistics", "torcheval", "torchmetrics"),
        *("boto3", "botocore", "http", "requests", "socket", "ssl", "subprocess", "urllib", "urllib3"),
        *("mlflow", "neptune", "tensorboard", "tensorboardX", "wandb"),
        *("editdistance", "evaluate", "jiwer", "pycocotools", "rouge_score", "sacrebleu", "statsmodels"),
    )
)
"""Packages that draw, count, read, write or send: a step can do without them, now and then."""

PASSES_ON = frozenset(
    [
        "abc",
        "asyncio",
        "concurrent",
        "contextlib",
        "copy",
        "enum",
        "functools",
        "gc",
        "inspect",
        "multiprocessing",
        "queue",
        "selectors",
        "signal",
        "threading",
        "time",
        "types",
        "typing",
        "warnings",
        "weakref",
    ]
)
"""Parts of the standard library that wait, or through which a program calls anything, torch included."""

PREPARE = frozenset(
    (
        *("librosa", "nltk", "numpy", "scipy", "soundfile", "spacy", "tokenizers", "transformers"),
        *("Bio", "SimpleITK", "albumentations", "astropy", "faiss", "netCDF4", "networkx", "nibabel", "open3d"),
        *("pydicom", "rasterio", "rdkit", "sentencepiece", "shapely", "sympy", "trimesh", "xarray", "zarr"),
        *(sys.stdlib_module_names - PASSES_ON),
    )
)
"""Packages through which no gradient flows, and which a batch is prepared with, or what the model makes is judged."""

NO_MODEL = (TRAINS_NOTHING | PREPARE) - {"transformers"}
"""Packages that hold neither model nor loss nor optimizer, whoever calls them."""

TORCHS_FILES = ("torch/serialization.py", "torch/utils/tensorboard/")
"""Files, or folders, of torch's that hold none either."""

TORCHS_CALLS = ("torch.load", "torch.save", "torch.serialization.", "torch.utils.tensorboard.")
"""Begins of the names under which the public knows what these hold."""
