"""What the training thread does: the ledger of its time, the clock of its steps, the watched loop. Nothing else."""
