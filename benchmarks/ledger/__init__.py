"""Does the ledger find time that was planted at known places, and does it add up?"""
