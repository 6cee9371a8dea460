"""What a report shows of a job of several ranks."""
