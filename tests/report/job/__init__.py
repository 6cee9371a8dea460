"""Tests of what reports show of a job."""
