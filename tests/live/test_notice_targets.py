"""Notices go only where the operator allows; each refusal names the setting, the value and the way out."""

import pytest
from tests.refusals import refusal

from shoal.core.errors import InputError
from shoal.live.notice_targets import NoticeTargets, mail_address, web_address

ALLOWED = NoticeTargets(("Hooks.example.org", "10.0.0.1:8080", "@example.org"), "Mail.example.org:25")


def test_allowed_targets_are_returned_as_given() -> None:
    targets = [
        "https://hooks.example.org/done?x=1",
        "http://HOOKS.example.org:80/",
        "http://10.0.0.1:8080",
        "mail:ann@Example.org",
    ]
    assert ALLOWED.check(targets) == tuple(targets)
    assert NoticeTargets().check([]) == ()


NO_ADDRESS = "must be an http or https address without a user, or mail:ADDRESS"
KNOWN = "Hooks.example.org, 10.0.0.1:8080, @example.org (`--notify-allow` of the control plane)"
REFUSED = [
    ("ftp://hooks.example.org/", NO_ADDRESS),
    ("https://ann:secret@hooks.example.org/", NO_ADDRESS),
    ("https://hooks.example.org/a b", NO_ADDRESS),
    ("https://hooks.example.org/ü", NO_ADDRESS),
    ("https://hooks.example.org:x/", NO_ADDRESS),
    ("https:///nowhere", NO_ADDRESS),
    ("https://hooks.example.org:444/", f"hooks.example.org:444 is not among the allowed ones, {KNOWN}"),
    ("https://example.org/", f"example.org is not among the allowed ones, {KNOWN}"),
    ("mail:ann", "must be mail:NAME@DOMAIN"),
    ("mail:ann@other.org", f"@other.org is not among the allowed ones, {KNOWN}"),
]


@pytest.mark.parametrize(("target", "hint"), REFUSED)
def test_a_target_that_is_not_allowed_is_refused_by_name(target: str, hint: str) -> None:
    with pytest.raises(InputError) as refused:
        ALLOWED.check(["mail:ann@example.org", target])
    assert (refused.value.field, refused.value.value, refused.value.hint) == ("notify", target, hint)


def test_without_a_mail_server_no_mail_is_allowed_and_without_an_entry_no_address() -> None:
    with refusal("notify: 'mail:ann@example.org': this cluster sends no mail (`--smtp` of its control plane)"):
        NoticeTargets(("@example.org",)).check(["mail:ann@example.org"])
    with refusal(
        "notify: 'https://example.org/': example.org is not among the allowed ones, none "
        "(`--notify-allow` of the control plane)"
    ):
        NoticeTargets().check(["https://example.org/"])


@pytest.mark.parametrize(
    ("allowed", "smtp", "sentence"),
    [
        (("a.org", "http://a.org"), "", "notify-allow: 'http://a.org': give a host, HOST:PORT, or @DOMAIN for mail"),
        ((), "mail server", "smtp: 'mail server': give HOST or HOST:PORT"),
    ],
)
def test_a_setting_that_names_no_host_is_refused(allowed: tuple[str, ...], smtp: str, sentence: str) -> None:
    with refusal(sentence):
        NoticeTargets(allowed, smtp)


def test_a_target_is_taken_apart_for_its_sender() -> None:
    assert mail_address("mail:ann@example.org") == "ann@example.org"
    assert mail_address("https://example.org") is None
    parts, path = web_address("https://example.org:8443/a/b?c=d")
    assert (parts.hostname, parts.port, path) == ("example.org", 8443, "/a/b?c=d")
    assert web_address("https://example.org")[1] == "/"
