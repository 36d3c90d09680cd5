"""A harness of verifiers without a program: each segment is one call to the model, made in this process.

verifiers' own chat harness starts a Python per segment, which costs a second of CPU and needs uv and a package index.
This one sends the same conversation to the same interception server. It has no tools.
"""

import aiohttp
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire

__all__ = ["Echo2ChatHarness"]


class Echo2ChatConfig(vf.HarnessConfig):
    """It has no settings of its own."""


class Echo2ChatHarness(vf.Harness[Echo2ChatConfig]):
    """One call to the model per segment."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Send the conversation so far, and let verifiers record the reply."""
        system, prompt = self.resolve_prompt(data)
        messages = [] if system is None else [{"role": "system", "content": system}]
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or []]
        body = {"model": ctx.model, "messages": messages}
        headers = {"Authorization": f"Bearer {secret}"}
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session,
            session.post(f"{endpoint}/chat/completions", json=body, headers=headers) as response,
        ):
            told = await response.text()
        return vf.ProgramResult(exit_code=0 if response.status == 200 else 1, stdout="", stderr=told[-2000:])
