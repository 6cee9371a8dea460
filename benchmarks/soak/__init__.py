"""Ten million steps through one monitor: does anything grow?"""
