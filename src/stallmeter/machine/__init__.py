"""What this machine offers the job, CPUs and memory, and what runs on it. Linux first; None where it cannot be read."""
