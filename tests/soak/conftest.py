"""How long the slow version goes on."""


def pytest_addoption(parser):
    parser.addoption("--soak", type=float, default=3600.0, help="Seconds of the long soak (a slow test).")
