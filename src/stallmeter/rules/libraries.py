"""What helps where a library's own call takes most of a batch or of a step: what its users seldom know."""

from __future__ import annotations

from ..records.diagnosis import Advice, Location

_DROPOUT = Advice.of(
    "Use dropout on fewer numbers, on smaller tensors or later in the model.",
    expect="A CPU draws a random number for each that is given to it, as a rule in one thread.",
    limit="Where the model learns as well without it there; of sparse features drop those that are not zero.",
)

_STACK = Advice.of(
    "Give torch one array, not a list of them: torch.from_numpy(numpy.stack(arrays)).",
    expect="Arrays in a list or tuple are copied as a whole, and not number by number.",
    limit="Where it is given an array or plain numbers, nothing is won.",
)

_COMPRESSED = Advice.of(
    "Make the sparse matrix compressed rows, once: matrix.coalesce().to_sparse_csr().",
    expect="On a CPU these multiply about twice as fast as coordinates.",
    limit="Compare: some operations take coordinates (COO) only.",
)

BY_CALL = {
    "torch.sparse.mm": _COMPRESSED,
    "torch.tensor": _STACK,
    "torch.as_tensor": _STACK,
    "torch.nn.functional.dropout": _DROPOUT,
    "torch.nn.Dropout.forward": _DROPOUT,
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
"""By the call as looks name it. h5py documents that a chunk is read and unpacked as a whole, and kept in a cache of 1
MB (8 MB from HDF5 2.0 on); zarr keeps none. PyTorch warns itself that a tensor from a list of arrays is slow to
make: two of 32 states of 7 kB took 38 ms of a step of 43 (a program of another author, which won 9.8 times). PyTorch
draws Bernoulli numbers with one thread on CPUs that are not Intel's (``bernoulli_default_kernel``). Products of sparse
matrices, forward and backward, took 2.1 to 2.5 times as long with coordinates as with compressed rows, coalesced or
not (four sizes, two threads, ours); a program of another author won 1.19 times in all."""


def beside(place: Location) -> tuple[Advice, ...]:
    """Return what else can be done where a function spends its time in a library's call; nothing of most."""
    known = BY_CALL.get(place.call or "")
    return () if known is None else (known,)
