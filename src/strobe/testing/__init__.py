"""The pytest plugin: the fixtures `strobe_simulate` and `live_system`, for tests of users' systems.

In: a system, by its name or as an object. Out: a test that passes, or fails with what does not hold and how to repeat
it. `pytest_plugin` imports only pytest; everything else is imported when a fixture is used.

Public: only the plugin, which pytest finds by the entry point in pyproject.toml.
"""
