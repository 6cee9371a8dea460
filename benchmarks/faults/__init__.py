"""Labelled faults in real Lightning runs: does the verdict name what was planted?

    python -m benchmarks.faults --seeds 1

Every case is a real ``Trainer.fit`` with a real DataLoader in a process of its own. The accelerator's compute is a
sleep in a layer of the model: it leaves the CPU free, as a device does, and needs none.
"""
