"""Loaders without torch's workers: drawn programs whose truth is measured by taking away what was planted."""
