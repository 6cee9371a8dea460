"""What helps where a library's own call takes most of a batch: what its makers say, and users seldom know."""

from __future__ import annotations

from ..records.diagnosis import Advice, Location

BY_CALL = {
    "h5py.Dataset.__getitem__": Advice.of(
        "Give h5py.File a larger chunk cache (rdcc_nbytes), or store chunks as large as an item.",
        expect="A chunk is unpacked once, and not for each item that lies in part of it.",
        limit="Only of files in chunks: h5py.Dataset.chunks tells their shape.",
    ),
    "zarr.Array.__getitem__": Advice.of(
        "Write zarr chunks as large as what an item reads.",
        expect="A chunk is not unpacked for the part of it that an item needs.",
        limit="Only where an item is smaller than a chunk.",
    ),
}
"""By the call as looks name it. h5py documents that a chunk is read and unpacked as a whole, and kept in a cache of
1 MB (8 MB from HDF5 2.0 on); zarr keeps none."""


def beside(place: Location) -> tuple[Advice, ...]:
    """Return what else can be done where a function spends its time in a library's call; nothing of most."""
    known = BY_CALL.get(place.call or "")
    return () if known is None else (known,)
