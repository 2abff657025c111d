"""What every test can count on."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def _no_process_is_left():
    yield
    from spanwise import isolation

    isolation.stop_servers()
