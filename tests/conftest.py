"""What every test can count on."""

import sys
from pathlib import Path

import pytest

# Modules that tests share: commands, isolation_work.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def _locks_of_our_own(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPANWISE_LOCKS", str(tmp_path_factory.mktemp("locks")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_process_is_left():
    yield
    from spanwise import isolation

    isolation.stop_servers()


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Return the command as it runs in this process, with results in a folder of the test's own."""
    from commands import Command

    return Command(tmp_path, monkeypatch, capsys)


@pytest.fixture
def third_party(tmp_path):
    """Return the override that adds each class of third_party.py as a variant, in small letters."""
    import third_party

    folder = tmp_path / "third_party" / "variant"
    folder.mkdir(parents=True)
    for name, kind in vars(third_party).items():
        if isinstance(kind, type) and kind.__module__ == "third_party":
            text = f"_target_: third_party.{name}\n"
            (folder / f"{name.lower()}.yaml").write_text(text)
    return f"hydra.searchpath=[file://{folder.parent}]"
