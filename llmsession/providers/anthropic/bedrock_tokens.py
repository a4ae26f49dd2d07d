"""Bedrock's own count of a request to a Claude model, through botocore."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmsession.errors import ProviderError, need_package
from llmsession.turns.request import Request

from ..counting.blocking import COUNT_TIMEOUT_S, BlockingTokens, without_prefix
from ..protocol import NOT_COUNTED
from .requests import bedrock_count_body, closed_by_user

__all__ = ["BedrockTokens"]

_PROFILES = ("us-gov.", "us.", "eu.", "apac.", "au.", "jp.", "ca.", "global.")
"""Of cross-region inference profiles. What is counted is the foundation model behind one."""


class BedrockTokens(BlockingTokens):
    """Counts with ``CountTokens``. Bedrock counts Claude's models alone; another one is a
    ProviderError. ``AnthropicProvider(platform="bedrock")`` uses one by itself; ``CountedProvider``
    gives it to any other provider.

    *region* and *profile* are AWS's; *credentials* are ``aws_access_key_id``,
    ``aws_secret_access_key`` and ``aws_session_token``. Without them botocore looks where it always
    does. *endpoint_url* is another server of the same protocol. *client* is a ``bedrock-runtime``
    client of your own instead, of botocore or boto3. Raises InvalidConfig where botocore is not
    installed.
    """

    def __init__(
        self,
        *,
        region: str | None = None,
        profile: str | None = None,
        credentials: Mapping[str, str | None] | None = None,
        endpoint_url: str | None = None,
        client: Any | None = None,
    ) -> None:
        need_package("botocore", "BedrockTokens", "llmsession[bedrock]")
        keys = {name: value for name, value in (credentials or {}).items() if value}

        def make() -> Any:
            from botocore.config import Config  # type: ignore[import-untyped]
            from botocore.session import Session  # type: ignore[import-untyped]

            waits = {"connect_timeout": COUNT_TIMEOUT_S, "read_timeout": COUNT_TIMEOUT_S}
            return Session(profile=profile).create_client(
                "bedrock-runtime",
                region_name=region,
                endpoint_url=endpoint_url,
                config=Config(retries={"total_max_attempts": 1}, **waits),
                **keys,
            )

        super().__init__("bedrock", client=client, make=make, options=keys)

    async def count_tokens(self, request: Request) -> int:
        """Bedrock's own count of *request*'s prompt, in tokens. One request of its own, in a
        thread. One that ends with a reply is counted with a neutral message after it, whose tokens
        are taken off again. Raises ProviderError. Can be cancelled."""
        model = without_prefix(request.model, _PROFILES)
        if "claude" not in model:
            text = f"bedrock counts no tokens of model {model!r}"
            raise ProviderError(text, kind="fatal", code=NOT_COUNTED)

        def ask(client: Any) -> object:
            closed, added_tokens = closed_by_user(request)
            body = {"invokeModel": {"body": bedrock_count_body(closed)}}
            answer = client.count_tokens(modelId=model, input=body)
            return max(0, answer["inputTokens"] - added_tokens)

        return await self._counted(ask)
