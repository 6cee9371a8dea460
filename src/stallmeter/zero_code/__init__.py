"""Training loops of programs that say nothing of stallmeter: whoever has an optimizer make steps.

Nothing is imported here: `startup` is in every process of a program that was started with ``STALLMETER=1``.
"""
