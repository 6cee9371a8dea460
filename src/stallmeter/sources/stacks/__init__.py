"""Where in the program's code the training thread is: its stack, looked at from a thread beside it."""
