"""Counts requests to Claude models with Bedrock's ``CountTokens``, through botocore."""

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
"""Prefixes of cross-region inference profiles. ``CountTokens`` accepts only the foundation model
behind a profile, so the prefix is removed.
"""


class BedrockTokens(BlockingTokens):
    """Counts tokens with Bedrock's ``CountTokens`` operation.

    Bedrock counts Claude models only; any other model raises ProviderError.
    ``AnthropicProvider(platform="bedrock")`` uses this counter by itself. ``CountedProvider`` adds
    it to any other provider.

    - *region* and *profile* are the AWS region and the AWS profile.
    - *credentials* are ``aws_access_key_id``, ``aws_secret_access_key`` and ``aws_session_token``.
      Without them botocore searches its usual places.
    - *endpoint_url* is another server that speaks the same protocol.
    - *client* is a ``bedrock-runtime`` client of your own, from botocore or boto3. It replaces all
      other arguments.

    Raises InvalidConfig if botocore is not installed.
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
        """Bedrock's own count of the prompt of *request*, in tokens.

        It costs one request, which is sent from a thread. If the conversation ends with a reply, a
        neutral user message is appended for the count, and its tokens are subtracted again. Raises
        ProviderError. Can be cancelled.
        """
        model = without_prefix(request.model, _PROFILES)
        if "claude" not in model:
            text = (
                f"bedrock cannot count tokens of model {model!r}: CountTokens supports Claude"
                " models only"
            )
            raise ProviderError(text, kind="fatal", code=NOT_COUNTED)

        def ask(client: Any) -> object:
            closed, added_tokens = closed_by_user(request)
            body = {"invokeModel": {"body": bedrock_count_body(closed)}}
            answer = client.count_tokens(modelId=model, input=body)
            return max(0, answer["inputTokens"] - added_tokens)

        return await self._counted(ask)
