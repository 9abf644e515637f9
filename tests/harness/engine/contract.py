"""What the API takes: a request body becomes a `Question`, or an `ApiError`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.harness.engine.answers import Answer, answer_to, complete
from tests.harness.engine.errors import ApiError
from tests.harness.engine.prompt import chat_tokens, raw_of, render_chat, render_message, text_tokens
from tests.harness.engine.settings import EngineSettings

EFFORTS = ("low", "high", "max")
DEFAULT_EFFORT = "max"
ROLES = ("system", "developer", "user", "assistant", "tool")
FORMATS = ("text", "json_object", "json_schema")
COMPLETION_LIMIT = 16
"""`max_tokens` of /v1/completions where it is not given."""


@dataclass(frozen=True)
class Question:
    """A request that is taken. `answer` is what the model says before limits; sizes are tokens."""

    chat: bool
    rendered: bytes
    prompt_tokens: int
    max_tokens: int
    answer: Answer
    at_least: int = 0
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    transfer: Mapping[str, Any] = field(default_factory=dict)

    def continued(self, answer: Answer) -> bytes:
        """What the engine's cache holds after the answer: for a chat, what the next turn's prompt will begin with."""
        if not self.chat:
            return self.rendered + answer.content.encode()
        calls = [{"function": {"name": call.name, "arguments": call.arguments}} for call in answer.calls]
        message = {"role": "assistant", "reasoning": answer.reasoning, "content": answer.content, "tool_calls": calls}
        return self.rendered + render_message(message).encode()


def parse_body(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw)
    except ValueError as wrong:
        raise ApiError(400, f"JSON decode error: {wrong}") from None
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object")
    return body


def check_model(body: Mapping[str, Any], settings: EngineSettings) -> None:
    model = body.get("model")
    if model and model != settings.served_name:
        raise ApiError(404, f"The model `{model}` does not exist.", "NotFoundError", "model")


def chat_question(body: Mapping[str, Any], settings: EngineSettings) -> Question:
    """Raises ApiError 404 for another model and 400 for everything Kimi K3's chat API refuses."""
    check_model(body, settings)
    messages = _messages(body)
    tools, choice = _tools(body, settings)
    effort = _effort(body)
    form = _format(body)
    header = {"effort": effort or "none", "tools": tools, "choice": "" if choice == "auto" else choice, "format": form}
    rendered = render_chat(messages, header)
    answer = answer_to(messages, effort=effort, tools=tools, tool_choice=choice, response_format=form)
    return _question(body, settings, True, rendered, chat_tokens(rendered), answer, settings.max_model_len)


def completion_question(body: Mapping[str, Any], settings: EngineSettings) -> Question:
    check_model(body, settings)
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, list) and prompt and all(isinstance(one, int) for one in prompt):
        rendered, text = raw_of(prompt), f"{len(prompt)} tokens"
    elif isinstance(prompt, str) and prompt:
        rendered, text = prompt.encode(), prompt
    else:
        raise ApiError(400, "prompt must be a text, or a list of token ids", param="prompt")
    return _question(body, settings, False, rendered, text_tokens(rendered), complete(text), COMPLETION_LIMIT)


def _question(
    body: Mapping[str, Any],
    settings: EngineSettings,
    chat: bool,
    rendered: bytes,
    prompt_tokens: int,
    answer: Answer,
    default_limit: int,
) -> Question:
    stream, options = bool(body.get("stream")), body.get("stream_options")
    if options and not stream:
        raise ApiError(400, "Stream options can only be defined when `stream=True`.", param="stream_options")
    if body.get("n", 1) != 1:
        raise ApiError(400, "Kimi K3 answers once: n must be 1", param="n")
    if body.get("top_logprobs") and not body.get("logprobs"):
        raise ApiError(400, "when using `top_logprobs`, `logprobs` must be set to true.", param="top_logprobs")
    limit = _limit(body, settings, prompt_tokens, default_limit)
    least = limit if body.get("ignore_eos") else _integer(body, "min_tokens", 0)
    stop = body.get("stop") or ()
    return Question(
        chat=chat,
        rendered=rendered,
        prompt_tokens=prompt_tokens,
        max_tokens=limit,
        answer=answer,
        at_least=min(least, limit),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stream=stream,
        include_usage=bool((options or {}).get("include_usage")),
        transfer=body.get("kv_transfer_params") or {},
    )


def _limit(body: Mapping[str, Any], settings: EngineSettings, prompt_tokens: int, default: int) -> int:
    window = settings.max_model_len
    asked = _integer(body, "max_completion_tokens", 0) or _integer(body, "max_tokens", 0)
    name = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    if body.get(name) is not None and asked < 1:
        raise ApiError(400, f"{name} must be at least 1, got {body[name]}.", param=name)
    if prompt_tokens + max(asked, 1) > window:
        raise ApiError(
            400,
            f"This model's maximum context length is {window} tokens. However, you requested {max(asked, 1)} output "
            f"tokens and your prompt contains {prompt_tokens} input tokens.",
            param="input_tokens",
        )
    return asked or min(default, window - prompt_tokens)


def _integer(body: Mapping[str, Any], name: str, default: int) -> int:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool):
        raise ApiError(400, f"{name} must be an integer", param=name)
    return value


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "messages must be a list with at least one message", param="messages")
    for message in messages:
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise ApiError(400, f"the role of a message is one of {', '.join(ROLES)}", param="messages")
        content = message.get("content")
        if content is not None and not isinstance(content, (str, list)):
            raise ApiError(400, "content is a text or a list of parts", param="messages")
        if isinstance(content, list) and not all(isinstance(part, dict) and part.get("type") for part in content):
            raise ApiError(400, "each part of a content has a type", param="messages")
    return messages


def _effort(body: Mapping[str, Any]) -> str | None:
    """The effort of thinking; None is without. A template argument counts before the field of the request."""
    extra = body.get("chat_template_kwargs") or {}
    if extra.get("thinking", extra.get("enable_thinking", True)) is False:
        return None
    for value in (extra.get("thinking_effort"), extra.get("reasoning_effort"), body.get("reasoning_effort")):
        if value == "none":
            return None
        if value is not None:
            if value not in EFFORTS:
                raise ApiError(400, f"reasoning_effort {value!r} is none of {', '.join(EFFORTS)}, none")
            return str(value)
    return DEFAULT_EFFORT


def _tools(body: Mapping[str, Any], settings: EngineSettings) -> tuple[list[Any], Any]:
    """(tools, tool_choice)."""
    tools = body.get("tools") or []
    names = set()
    for tool in tools:
        name = (tool.get("function") or {}).get("name") if isinstance(tool, dict) else None
        if not name:
            raise ApiError(400, "each tool is a function with a name", param="tools")
        names.add(name)
    choice = body.get("tool_choice") or ("auto" if tools else "none")
    named = (choice.get("function") or {}).get("name") if isinstance(choice, dict) else None
    if choice != "none" and not tools:
        raise ApiError(400, "When using `tool_choice`, `tools` must be set.", param="tool_choice")
    if isinstance(choice, dict):
        if named not in names:
            raise ApiError(400, f"tool_choice names {named!r}, which is no tool of the request", param="tool_choice")
    elif choice not in ("auto", "none", "required"):
        raise ApiError(400, f"tool_choice {choice!r} is none of auto, none, required", param="tool_choice")
    elif choice == "auto" and not settings.auto_tool_choice:
        raise ApiError(
            400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set', param="tools"
        )
    return tools, choice


def _format(body: Mapping[str, Any]) -> dict[str, Any] | None:
    form = body.get("response_format")
    if form is None:
        return None
    if not isinstance(form, dict) or form.get("type") not in FORMATS:
        raise ApiError(400, f"the type of response_format is one of {', '.join(FORMATS)}", param="response_format")
    if form["type"] == "json_schema" and not isinstance(form.get("json_schema"), dict):
        raise ApiError(400, "response_format json_schema needs json_schema", param="response_format")
    return None if form["type"] == "text" else form
