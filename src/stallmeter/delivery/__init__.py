"""What leaves the machine: points and pages, sent to trackers by one thread, from the recording."""
