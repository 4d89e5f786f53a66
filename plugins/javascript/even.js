// A planner in JavaScript: cuts every layered component into equal pieces, as few as the first target's limit on operations
// allows, all on that target in the first formats. Refuses if that plan exceeds a limit or a goal.
//
// Names of the interface are in camel case here, records are plain objects, a variant is { tag, val }, and an absent
// option is left out. A u64 is a number or a BigInt, depending on the engine, and large unsigned numbers may arrive as
// negative ones. A refusal is thrown as a record. Any other exception stops the planner like a crash. Every call runs in a
// new instance, so variables do not keep their values.
import { log } from 'shardwright:planner/host@0.2.0-draft';

const u32 = (value) => value >>> 0;
const u64 = (value) => Number(BigInt.asUintN(64, BigInt(value)));

function refuse(kind, message) {
  throw { kind, message, details: [], lessons: [] };
}

// The decode entry point with enough context, and the largest prefill of that context.
function chosenEntries({ entries, goals }) {
  const decode = entries
    .filter(({ kind, rows, context }) => kind === 'decode' && rows === 1 && context >= u32(goals.context))
    .sort((a, b) => a.context - b.context)[0];
  if (!decode) refuse('unsupported', 'this planner is for models that decode');
  const prefill = entries
    .filter(({ kind, context }) => kind === 'prefill' && context === decode.context)
    .filter(({ rows }) => rows <= u32(goals.maxPrefillRows))
    .sort((a, b) => b.rows - a.rows)[0];
  return prefill ? [decode, prefill] : [decode];
}

const kindsOf = ({ body }) => (body.tag === 'whole' ? [body.val] : body.val.map(({ kind }) => kind));

// Operations of a layer kind, the most over its entry points.
function operations({ costs }, kind) {
  const rows = costs.filter((cost) => cost.kind === kind && cost.target === 0 && cost.formats === 0);
  return Math.max(0, ...rows.map(({ ops }) => u64(ops)));
}

// Equal ranges of layers with at most `limit` operations each; 0 to 0 for a component that is never cut.
function cut(request, component, limit) {
  if (component.body.tag === 'whole') return [{ first: 0, end: 0 }];
  const ops = kindsOf(component).map((kind) => operations(request, kind));
  for (let pieces = 1; pieces <= ops.length; pieces += 1) {
    const ranges = Array.from({ length: pieces }, (_, piece) => ({
      first: Math.floor((piece * ops.length) / pieces),
      end: Math.floor(((piece + 1) * ops.length) / pieces),
    }));
    const sum = ({ first, end }) => ops.slice(first, end).reduce((a, b) => a + b, 0);
    if (ranges.every((range) => sum(range) <= limit)) return ranges;
  }
  return refuse('over-limit', `a layer of \`${component.name}\` alone exceeds ${limit} operations`);
}

function takesPart(request, component, { first, end }, entry) {
  const kinds = end === 0 ? kindsOf(component) : kindsOf(component).slice(first, end);
  return entry.kind !== 'prefill' || kinds.some((kind) => request.kinds[kind].prefill !== 'none');
}

const sum = (values) => values.reduce((a, b) => a + b, 0);

// Cost of a shard: each sum over its layers, and for quantities of an entry point the largest.
function cost(request, { segments: [{ component, first, end }], entries }) {
  const kinds = kindsOf(request.model.components[component]);
  const own = end === 0 ? kinds : kinds.slice(first, end);
  const rows = entries.map((entry) =>
    own.filter((kind) => entry.kind !== 'prefill' || request.kinds[kind].prefill !== 'none').map((kind) => {
      const row = request.costs.find((row) => row.kind === kind && row.target === 0 && row.formats === 0
        && ['kind', 'rows', 'context'].every((field) => row.entry[field] === entry[field]));
      if (row?.support.tag !== 'legal') refuse('unsupported', `a layer has no cost: ${row?.support.val ?? 'no row'}`);
      return row;
    }));
  const of = (field) => rows.map((rows) => sum(rows.map((row) => u64(row[field]))));
  const timesOf = (bound) => rows.map((rows) => sum(rows.map(({ support }) => u64(support.val[bound]))));
  const [low, times, high] = ['low', 'likely', 'high'].map(timesOf);
  const ofKind = (kind) => Math.max(...rows.flat().filter((row) => row.kind === kind).map((row) => u64(row.weightBytes)));
  const weights = own.map(ofKind);
  const artefact = sum(weights) + sum(of('artefactBytes'));
  const context = artefact + Math.max(...of('stateBytes'));
  // The host refuses sums of more than 64 bits.
  const sums = [context, ...of('ops'), ...high];
  if (sums.some((sum) => sum >= 2 ** 63)) refuse('over-limit', 'a sum of the cost table has more than 63 bits');
  return { low, times, weights, artefact, context, ops: Math.max(...of('ops')) };
}

// Loss of a layer in the first formats. Unknown losses of activations and states are not counted.
function loss({ formats: [tuple], weightFormats, sensitivities, valueSensitivities }, component, layer) {
  const here = (row) => row.component === component && row.layer === layer;
  const weightOf = (role) => tuple.roles.find((own) => own.role === role)?.format ?? tuple.weights;
  const values = valueSensitivities.filter((row) => here(row) && row.format === tuple[row.values]);
  const used = [tuple.weights, ...tuple.roles.map(({ format }) => format)];
  const isFloat = used.every((format) => weightFormats[format].numbers === 'float');
  const weights = sensitivities.filter((row) => here(row) && row.format === weightOf(row.role));
  if (!isFloat && weights.length === 0) refuse('over-quality', 'the loss of a layer is unknown');
  return sum([...values, ...(isFloat ? [] : weights)].map(({ micronats }) => u32(micronats)));
}

// Refuses a plan that the host would refuse.
function check(request, { shards, tables }) {
  const { goals, targets: [target] } = request;
  const bound = (tag) => goals.bounds.find((goal) => goal.tag === tag)?.val;
  const atMost = (kind, name, value, most) => {
    if (most != null && value > u64(most)) refuse(kind, `${name} is ${value}, at most ${u64(most)} allowed`);
  };
  const costs = shards.map((shard) => cost(request, shard));
  const largest = (of) => Math.max(...costs.map(of));
  const memory = sum(costs.map(({ context }) => context));
  const values = {
    ops: largest(({ ops }) => ops),
    'weight-bytes': largest(({ weights }) => sum(weights)),
    'artefact-bytes': largest(({ artefact }) => artefact),
    'context-bytes': largest(({ context }) => context),
    'call-microseconds': largest(({ times }) => Math.max(...times)),
    shards: shards.length,
    'memory-bytes': memory,
  };
  for (const { name, value } of target.limits) atMost('over-limit', name, values[name] ?? 0, value);
  atMost('over-limit', 'shards', shards.length, 256);
  const chosen = request.tables.map(({ formats }, table) => formats[tables[table]]);
  atMost('over-memory', 'memory-bytes', memory, bound('memory-bytes') ?? 2 ** 63);
  const size = sum([...costs.map(({ artefact }) => artefact), ...chosen.map(({ bytes }) => u64(bytes))]);
  atMost('over-size', 'size', size, bound('size-bytes'));

  // A plan keeps a goal if the lowest time does. Each run of a shard takes the time of a call and of
  // the runtime too. The last token of a prompt is decoded.
  const call = u64(target.overheads.find(({ name }) => name === 'call-microseconds')?.low ?? 0);
  const isPrefill = ({ kind }) => kind === 'prefill';
  const isDecode = ({ kind }) => kind !== 'prefill';
  const time = (is) => sum(shards.flatMap(({ entries }, shard) =>
    entries.map((entry, index) => (is(entry) ? costs[shard].low[index] + call : 0))));
  const calls = (is) => shards.flatMap(({ entries }) => entries).filter(is).length;
  const between = (runs) => Math.floor((runs * u64(request.boundaryNanoseconds)) / 1000);
  const rows = shards.flatMap(({ entries }) => entries).find(isPrefill)?.rows;
  const runs = rows ? Math.ceil(Math.max(u32(goals.promptTokens) - 1, 0) / rows) : 0;
  atMost('too-slow', 'token-microseconds', time(isDecode) + between(calls(isDecode)), bound('token-microseconds'));
  const first = time(isDecode) + runs * time(isPrefill) + between(calls(isDecode) + runs * calls(isPrefill));
  atMost('too-slow', 'first-token-microseconds', first, bound('first-token-microseconds'));

  const quality = bound('quality-micronats');
  if (quality == null) return;
  const layers = shards.flatMap(({ segments: [{ component, first }] }, shard) =>
    costs[shard].weights.map((bytes, index) => (bytes > 0 ? loss(request, component, first + index) : 0)));
  if (chosen.some(({ micronats }) => micronats == null)) refuse('over-quality', 'the loss of a table is unknown');
  atMost('over-quality', 'quality', sum([...layers, ...chosen.map(({ micronats }) => u32(micronats))]), quality);
}

function makePlan(request) {
  const [target] = request.targets;
  const entries = chosenEntries(request);
  const limits = target.limits.filter(({ name }) => name === 'ops').map(({ value }) => u64(value));
  const limit = Math.min(Infinity, ...limits);
  const shards = request.model.components.flatMap((component, index) =>
    cut(request, component, limit).map((range) => ({
      segments: [
        { component: index, ...range, formats: Array(Math.max(range.end - range.first, 1)).fill(0) },
      ],
      target: 0,
      context: entries[0].context,
      entries: entries.filter((entry) => takesPart(request, component, range, entry)),
      inputs: component.inputs.map((name) => ({ name })),
      outputs: component.outputs.map((name) => ({ name })),
      softcap: component.softcap && 'graph',
      flags: target.recommended,
      build: 'ahead',
      extensions: [],
    })),
  );
  log('info', `${shards.length} shards on ${target.name}`);
  // Each table is in its first format.
  const plan = { shards, tables: request.tables.map(() => 0), fallback: [], reasons: [], lessons: [], extensions: [] };
  check(request, plan);
  return plan;
}

export const api = {
  describe: () => ({
    name: 'even-js',
    version: '0.1.0',
    summary: 'equal pieces, as few as the limit on operations allows',
    options: [],
  }),
  makePlan,
  revise: () => refuse('exhausted', 'this planner has only one plan'),
};
