"""Runs that nobody wrote by hand: drawn from a seed, judged by stallmeter, and their truth measured.

    python -m benchmarks.faults --seeds 0-239 --folder build/faults

Each draw plants 0, 1 or 2 causes in a real training program: Lightning's Trainer or a plain loop, with a real
DataLoader of one of eight libraries, pinned to two CPUs. The accelerator's compute is a sleep in a layer of the model,
or a product of matrices on the CPU.

**What is true is measured.** The same program is run again with each planted cause removed. The cause whose removal
gains most is the truth; where that gains less than 5 % the run counts as healthy. What costs no time (growing memory,
open files, a small /dev/shm) keeps the truth that was declared.

**Which verdicts count as the same.** A verdict is right if the change that its first advice names is one that wins the
time back (`cause.Lever`). One worker that waits for storage is `too-few-workers` and `fetch-stall` alike, if more
workers win the time back; behind a lock that all workers share they do not, and only `fetch-stall` is right. A loader
that computes is `too-few-workers` as long as more workers win back half of what instant items would, and `prep-stall`
as long as they leave a fifth of it.
"""
