"""What the allocator keeps of memory that was freed."""

from __future__ import annotations

import ctypes

import pytest

from stallmeter.machine import heap

BLOCK, COUNT = 40_000, 2_000


@pytest.mark.skipif(heap.free_in_heap() is None, reason="this C library does not tell")
def test_gaps():
    """Every second one of many blocks is given back: the heap cannot shrink, and the gaps are told."""
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    library.free.argtypes = (ctypes.c_void_p,)
    # glibc's tcache and fast bins keep smaller blocks and count them as used; mmap takes larger ones.
    blocks = [library.malloc(BLOCK) for _ in range(COUNT)]
    before = heap.free_in_heap()
    for block in blocks[::2]:
        library.free(block)
    gaps = heap.free_in_heap()
    for block in blocks[1::2]:
        library.free(block)
    assert before is not None
    assert gaps is not None
    assert gaps - before == pytest.approx(BLOCK * COUNT / 2, rel=0.1)


def test_another_library(monkeypatch):
    """Without the function, or without a library of the process, nothing is told."""
    for error in (AttributeError, OSError, TypeError):

        def refuse(name, error=error):
            raise error

        heap._mallinfo2.cache_clear()
        with monkeypatch.context() as patched:
            patched.setattr(heap.ctypes, "CDLL", refuse)
            assert heap.free_in_heap() is None
        heap._mallinfo2.cache_clear()
