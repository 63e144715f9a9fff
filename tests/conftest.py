"""One torch thread: on tiny models more of them only wait for each other."""

import torch

torch.set_num_threads(1)

collect_ignore = ["checkpoint/starter.py"]
"""A program that a test starts; it imports what lies beside it."""
