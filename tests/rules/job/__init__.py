"""Tests of the rules over ranks."""
