"""Calls the server with `openai` from PyPI. The argument is JSON: see `given` in howto_serve.rs."""

import json
import sys

from openai import APIStatusError, OpenAI

given = json.loads(sys.argv[1])
client = OpenAI(base_url=given["server"], api_key=given["key"], max_retries=0, timeout=300)
asked = [{"role": "user", "content": given["question"]}]
chat = client.chat.completions.create
exact = {"temperature": 0}
results = {"models": [model.id for model in client.models.list()]}

reply = chat(model=given["chat"], messages=asked, **exact)
results["reply"] = reply.choices[0].message.content
results["finish"] = reply.choices[0].finish_reason
results["tokens"] = [reply.usage.prompt_tokens, reply.usage.completion_tokens]

pieces, usage = [], None
options = {"include_usage": True}
for chunk in chat(model=given["chat"], messages=asked, stream=True, stream_options=options, **exact):
    pieces += [choice.delta.content for choice in chunk.choices if choice.delta.content]
    usage = chunk.usage or usage
results["streamed"] = "".join(pieces)
results["pieces"] = len(pieces)
results["streamed_tokens"] = [usage.prompt_tokens, usage.completion_tokens]
results["reused"] = usage.prompt_tokens_details.cached_tokens

reply = client.completions.create(model=given["chat"], prompt="It is", max_tokens=4, **exact)
results["continued"] = reply.choices[0].text
reply = client.responses.create(model=given["chat"], input=given["question"], **exact)
results["response"] = reply.output_text

tool = {"type": "function", "function": given["tool"]}
reply = chat(model=given["tools"], messages=asked, tools=[tool], tool_choice="required", **exact)
call = reply.choices[0].message.tool_calls[0]
results["call"] = {"name": call.function.name, "arguments": json.loads(call.function.arguments)}
results["call_finish"] = reply.choices[0].finish_reason
turns = [*asked, reply.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
reply = chat(model=given["tools"], messages=turns, tools=[tool], max_tokens=8, **exact)
results["after_call"] = reply.usage.prompt_tokens

schema = {"name": "answer", "strict": True, "schema": given["schema"]}
form = {"type": "json_schema", "json_schema": schema}
reply = chat(model=given["chat"], messages=asked, response_format=form, **exact)
results["typed"] = json.loads(reply.choices[0].message.content)

vectors = client.embeddings.create(model=given["embed"], input=["a text", "another"])
results["vectors"] = [item.embedding for item in vectors.data]

picture = {"type": "image_url", "image_url": {"url": given["picture"]}}
turn = [{"role": "user", "content": [picture, {"type": "text", "text": given["question"]}]}]
reply = chat(model=given["sees"], messages=turn, max_tokens=4, **exact)
plain = chat(model=given["sees"], messages=asked, max_tokens=4, **exact)
results["picture_tokens"] = reply.usage.prompt_tokens - plain.usage.prompt_tokens
sound = {"type": "input_audio", "input_audio": {"data": given["sound"], "format": "flac"}}
turn = [{"role": "user", "content": [sound, {"type": "text", "text": given["question"]}]}]
reply = chat(model=given["sees"], messages=turn, max_tokens=4, **exact)
results["sound_tokens"] = reply.usage.prompt_tokens - plain.usage.prompt_tokens

refused = []
for more in [{"model": "unknown"}, {"model": given["chat"], "extra_body": {"no_such_field": 1}}]:
    try:
        chat(messages=asked, **more)
    except APIStatusError as error:
        refused.append([error.status_code, str(error)])
results["refused"] = refused
print(json.dumps(results))
