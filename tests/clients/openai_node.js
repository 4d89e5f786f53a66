// Calls the server with `openai` from npm. The argument is JSON: see `given` in howto_serve.rs.
import OpenAI from "openai";

const given = JSON.parse(process.argv[2]);
const client = new OpenAI({ baseURL: given.server, apiKey: given.key, maxRetries: 0 });
const asked = [{ role: "user", content: given.question }];
const chat = (options) => client.chat.completions.create({ messages: asked, temperature: 0, ...options });
const results = { models: [] };
for await (const { id } of client.models.list()) results.models.push(id);

let reply = await chat({ model: given.chat });
results.reply = reply.choices[0].message.content;
results.finish = reply.choices[0].finish_reason;
results.tokens = [reply.usage.prompt_tokens, reply.usage.completion_tokens];

const pieces = [];
const stream_options = { include_usage: true };
for await (const chunk of await chat({ model: given.chat, stream: true, stream_options })) {
  for (const { delta } of chunk.choices) if (delta.content) pieces.push(delta.content);
  if (chunk.usage) {
    results.streamed_tokens = [chunk.usage.prompt_tokens, chunk.usage.completion_tokens];
    results.reused = chunk.usage.prompt_tokens_details.cached_tokens;
  }
}
results.streamed = pieces.join("");
results.pieces = pieces.length;

const begun = { model: given.chat, prompt: "It is", max_tokens: 4, temperature: 0 };
reply = await client.completions.create(begun);
results.continued = reply.choices[0].text;
reply = await client.responses.create({ model: given.chat, input: given.question, temperature: 0 });
results.response = reply.output_text;

const tools = [{ type: "function", function: given.tool }];
reply = await chat({ model: given.tools, tools, tool_choice: "required" });
const [call] = reply.choices[0].message.tool_calls;
results.call = { name: call.function.name, arguments: JSON.parse(call.function.arguments) };
results.call_finish = reply.choices[0].finish_reason;
const turns = [...asked, reply.choices[0].message, { role: "tool", tool_call_id: call.id, content: "sunny" }];
reply = await chat({ model: given.tools, messages: turns, tools, max_tokens: 8 });
results.after_call = reply.usage.prompt_tokens;

const json_schema = { name: "answer", strict: true, schema: given.schema };
reply = await chat({ model: given.chat, response_format: { type: "json_schema", json_schema } });
results.typed = JSON.parse(reply.choices[0].message.content);

const vectors = await client.embeddings.create({ model: given.embed, input: ["a text", "another"] });
results.vectors = vectors.data.map(({ embedding }) => embedding);

const plain = await chat({ model: given.sees, max_tokens: 4 });
const tokensOf = async (part) => {
  const content = [part, { type: "text", text: given.question }];
  const { usage } = await chat({ model: given.sees, messages: [{ role: "user", content }], max_tokens: 4 });
  return usage.prompt_tokens - plain.usage.prompt_tokens;
};
results.picture_tokens = await tokensOf({ type: "image_url", image_url: { url: given.picture } });
const input_audio = { data: given.sound, format: "flac" };
results.sound_tokens = await tokensOf({ type: "input_audio", input_audio });

results.refused = [];
for (const more of [{ model: "unknown" }, { model: given.chat, no_such_field: 1 }]) {
  try {
    await chat(more);
  } catch (error) {
    results.refused.push([error.status, error.message]);
  }
}
console.log(JSON.stringify(results));
