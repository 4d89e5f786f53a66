// A planner in JavaScript: cuts every layered component into equal pieces, as few as the first target's limit on operations
// allows, all on that target in the first formats.
//
// Names of the interface are in camel case here, records are plain objects, a variant is { tag, val }, and an absent
// option is left out. A u64 is a number or a BigInt, by the engine: `Number` accepts both. A refusal is thrown as a record;
// anything else that is thrown stops the planner like a crash. Every call runs in a fresh instance: variables do not
// survive it.
import { log } from 'shardwright:planner/host@0.2.0-draft';

function refuse(kind, message) {
  throw { kind, message, details: [] };
}

// The decode entry point with enough context, and the largest prefill of that context.
function chosenEntries({ entries, goals }) {
  const decode = entries
    .filter(({ kind, rows, context }) => kind === 'decode' && rows === 1 && context >= goals.context)
    .sort((a, b) => a.context - b.context)[0];
  if (!decode) refuse('unsupported', 'this planner is for models that decode');
  const prefill = entries
    .filter(({ kind, context }) => kind === 'prefill' && context === decode.context)
    .filter(({ rows }) => rows <= goals.maxPrefillRows)
    .sort((a, b) => b.rows - a.rows)[0];
  return prefill ? [decode, prefill] : [decode];
}

const kindsOf = ({ body }) => (body.tag === 'whole' ? [body.val] : body.val.map(({ kind }) => kind));

// Operations of a layer kind, the most over its entry points.
function operations({ costs }, kind) {
  const rows = costs.filter((cost) => cost.kind === kind && cost.target === 0 && cost.formats === 0);
  return Math.max(0, ...rows.map(({ ops }) => Number(ops)));
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
  return refuse('over-limit', `a layer of \`${component.name}\` alone is above ${limit} operations`);
}

function takesPart(request, component, { first, end }, entry) {
  const kinds = end === 0 ? kindsOf(component) : kindsOf(component).slice(first, end);
  return entry.kind !== 'prefill' || kinds.some((kind) => request.kinds[kind].prefill !== 'none');
}

function makePlan(request) {
  const [target] = request.targets;
  const entries = chosenEntries(request);
  const limits = target.limits.filter(({ name }) => name === 'ops').map(({ value }) => Number(value));
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
  // Each table in the format that is named first.
  const tables = request.tables.map(() => 0);
  return { shards, tables, fallback: [], reasons: [], extensions: [] };
}

export const api = {
  describe: () => ({
    name: 'even-js',
    version: '0.1.0',
    summary: 'equal pieces, as few as the limit on operations allows',
    options: [],
  }),
  makePlan,
  revise: () => refuse('exhausted', 'this planner has one plan'),
};
