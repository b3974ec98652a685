from hypothesis import settings

# A time limit on each example says more about the machine than about the code.
settings.register_profile("memfit", deadline=None)
settings.load_profile("memfit")
