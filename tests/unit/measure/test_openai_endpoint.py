"""Prompts as text, for servers that take nothing else."""

import pytest

from workflow_scripts.measure.openai_endpoint import text_of_as_many_tokens


class Characters:
    """Writes a token as its number in brackets and reads each character as a token, after one for the beginning."""

    def decode(self, token_ids: list[object]) -> str:
        return "".join(token if isinstance(token, str) else f"<{token}>" for token in token_ids)

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[str]]:
        return {"input_ids": ["^"] * add_special_tokens + list(text)}


@pytest.mark.parametrize("tokens", [1, 2, 5, 40])
def test_a_text_is_cut_to_as_many_tokens_as_were_meant(tokens: int) -> None:
    meant = [1234] * tokens
    tokenizer = Characters()
    text = text_of_as_many_tokens(tokenizer, meant)
    assert tokenizer.decode(meant).startswith(text)
    # The token of the beginning counts. Nothing is left to cut where it is all that was meant.
    assert len(tokenizer(text)["input_ids"]) == (tokens if tokens > 1 else 7)


def test_a_text_that_is_read_as_fewer_tokens_is_left_alone() -> None:
    class Words(Characters):
        def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[str]]:
            return {"input_ids": text.split(">")[:2]}

    assert text_of_as_many_tokens(Words(), [1, 2, 3]) == "<1><2><3>"
