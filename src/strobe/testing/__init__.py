"""The pytest plugin: the fixtures `strobe_simulate` and `live_system`, for tests of users' systems.

pytest finds it by its entry point. `pytest_plugin` imports only pytest; everything else is imported when a fixture is
used.
"""
