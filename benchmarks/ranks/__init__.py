"""Jobs of several ranks: two real ones with a fault that is drawn, and hundreds that are simulated."""
