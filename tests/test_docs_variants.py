"""The page of the variants lists each one, and its example works as it stands."""

import re
from pathlib import Path

from spanwise.check import check_variant

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "variants.md").read_text(encoding="utf-8")


def test_every_config_has_a_row():
    rows = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`([\w/]+)`", row)}
    folder = ROOT / "configs" / "variant"
    assert listed == {
        str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.yaml")
    }


def test_the_example_passes_the_checks():
    block = PAGE.split("# variants/mine.py\n")[1].split("    # configs/")[0]
    names: dict = {}
    exec(re.sub(r"^    ", "", block, flags=re.M), names)

    def mine(**keywords):
        return names["Mine"](**{"reach": 6} | keywords)

    checks = ["check_equals_oracle", "check_receptive_field", "check_padded_equals_alone"]
    assert {result.status for result in check_variant(mine, checks)} == {"passed"}
