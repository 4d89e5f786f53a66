// Calls the server with the AI SDK. The argument is JSON: see `given` in howto_serve.rs.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateText, jsonSchema, Output, streamText, tool } from "ai";

const given = JSON.parse(process.argv[2]);
const server = createOpenAICompatible({
  name: "shardwright", baseURL: given.server, apiKey: given.key, includeUsage: true,
  supportsStructuredOutputs: true,
});
const exact = { temperature: 0, maxRetries: 0 };
const results = {};

let reply = await generateText({ model: server(given.chat), prompt: given.question, ...exact });
results.reply = reply.text;
results.finish = reply.finishReason;
results.tokens = [reply.usage.inputTokens, reply.usage.outputTokens];

const pieces = [];
const streaming = streamText({ model: server(given.chat), prompt: given.question, ...exact });
for await (const piece of streaming.textStream) pieces.push(piece);
const usage = await streaming.usage;
results.streamed = pieces.join("");
results.pieces = pieces.length;
results.streamed_tokens = [usage.inputTokens, usage.outputTokens];

const { name, description, parameters } = given.tool;
const tools = { [name]: tool({ description, inputSchema: jsonSchema(parameters) }) };
reply = await generateText({
  model: server(given.tools), prompt: given.question, tools, toolChoice: "required", ...exact,
});
results.call = { name: reply.toolCalls[0].toolName, arguments: reply.toolCalls[0].input };
results.call_finish = reply.finishReason === "tool-calls" ? "tool_calls" : reply.finishReason;

const output = Output.object({ schema: jsonSchema(given.schema) });
reply = await generateText({ model: server(given.chat), prompt: given.question, output, ...exact });
results.typed = reply.output;

const vectors = await embedMany({ model: server.embeddingModel(given.embed), values: ["a text", "another"] });
results.vectors = vectors.embeddings;

const content = [{ type: "image", image: given.picture }, { type: "text", text: given.question }];
const messages = [{ role: "user", content }];
const seen = await generateText({ model: server(given.sees), messages, maxOutputTokens: 4, ...exact });
const prompt = given.question;
const plain = await generateText({ model: server(given.sees), prompt, maxOutputTokens: 4, ...exact });
results.picture_tokens = seen.usage.inputTokens - plain.usage.inputTokens;
console.log(JSON.stringify(results));
