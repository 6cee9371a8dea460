"""The recommended ``num_workers`` against exhaustive sweeps: ``python -m benchmarks.workers``."""
