"""What sources share that look at the program's code: whose a function is, and where time was spent in it."""
