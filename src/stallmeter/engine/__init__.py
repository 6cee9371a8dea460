"""What runs a measurement: the monitor, its sampler thread, the guard around all that may fail, and their wiring."""
