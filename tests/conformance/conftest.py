"""The marker of long tests."""


def pytest_configure(config):
    config.addinivalue_line("markers", "campaign: long; run with ZOO_CAMPAIGN=1")
