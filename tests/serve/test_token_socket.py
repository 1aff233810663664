"""The socket of `shoal up`: no job gets the admin's token, nor does another user."""

import os
import subprocess
import sys

import pytest

from shoal.serve.token_socket import offer_token

ASK = """
import os, sys
from shoal.core.errors import ShoalError
from shoal.wire.token_source import ask_token
if len(sys.argv) > 2:
    os.setuid(int(sys.argv[2]))
try:
    print(ask_token(sys.argv[1]))
except ShoalError as error:
    print(error)
"""


def ask(*arguments: str) -> str:
    """What a child of this process, as all jobs are of `shoal up`, is answered."""
    command = [sys.executable, "-c", ASK, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_a_descendant_is_refused_on_every_kernel() -> None:
    with offer_token("shoal_secret") as name:
        said = ask(name)
    assert said.startswith("a job may not act as the cluster's owner")
    assert "shoal_secret" not in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_neither_gets_the_token_nor_can_answer_for_the_owner() -> None:
    with offer_token("shoal_secret") as name:
        assert ask(name, "1500").startswith("this cluster belongs to another user")


def test_a_cluster_that_has_ended_is_named_as_unreachable() -> None:
    with offer_token("shoal_secret") as name:
        pass
    assert "is `shoal up` running?" in ask(name)
