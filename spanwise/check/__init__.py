"""The conformance suite: a variant is checked before it is compared.

    from spanwise.check import check_variant
    for result in check_variant(MyVariant):
        print(result.check, result.status, result.message)

With pytest: ``parametrize_with_checks``. From the shell: ``python runner.py action=check
variant=NAME``. A variant that is known to fail a check says so itself, with the reason, in
``expected_failures``.
"""

from spanwise.check.subject import Failed, Skipped, Subject
from spanwise.check.suite import (
    CHECKS,
    Result,
    assert_passes,
    check_variant,
    parametrize_with_checks,
)

__all__ = [
    "CHECKS",
    "Failed",
    "Result",
    "Skipped",
    "Subject",
    "assert_passes",
    "check_variant",
    "parametrize_with_checks",
]
