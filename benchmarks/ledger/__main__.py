"""Run it: python -m benchmarks.ledger."""

from .planted import main

main()
