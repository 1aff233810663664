"""Where an agent's token comes from."""

from pathlib import Path

from shoal.wire.token_source import agent_token


def test_a_token_file_is_read_again_and_its_first_token_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "agent.token"
    path.write_text("first\n")
    token = agent_token(path, None)
    assert token() == "first"
    path.write_text("second\n")
    assert token() == "second"
    path.unlink()
    assert token() == "first"
