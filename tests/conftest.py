import torch
from hypothesis import settings

# Machines are shared and noisy: how long one example takes says nothing.
settings.register_profile("seft", deadline=None, print_blob=True)
settings.load_profile("seft")

# The arrays here are small; starting threads on them costs more than the work.
torch.set_num_threads(1)
