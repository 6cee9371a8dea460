"""Which rank this process is, and how the ranks of a job agree on the folder of their recording."""
