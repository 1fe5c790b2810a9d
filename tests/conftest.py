from hypothesis import settings

# Machines are shared and noisy: how long one example takes says nothing.
settings.register_profile("seft", deadline=None, print_blob=True)
settings.load_profile("seft")
