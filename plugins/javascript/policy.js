// A policy in JavaScript: preferences for a plan, as options of the built-in planner, which does
// everything else.
//
// It imports the same interface that it exports, from the planner that `shardwright planner
// compose` joins it with.
import * as solver from 'shardwright:planner/api@0.2.0-draft';
import { log } from 'shardwright:planner/host@0.2.0-draft';

// The head is on the CPU. The first and the last layer have 8 bits, and so have the second matrices
// of the MLPs between them. Everywhere else formats are more important than fewer shards.
function wanted({ model, targets, formats, weightFormats }) {
  const options = [['order', 'targets,formats']];
  const cpu = targets.find(({ kind }) => kind === 'cpu');
  if (cpu) options.push(['place.head', cpu.name]);
  const decoder = model.components.find(({ name }) => name === 'decoder');
  if (!decoder) return options;
  const layers = decoder.body.val.length;
  const isFine = (format) => weightFormats[format].name === 'w8-per-channel';
  if (formats.some(({ weights, roles }) => isFine(weights) && roles.length === 0)) {
    options.push(['weights.decoder.0-1', 'w8-per-channel'], [`weights.decoder.${layers - 1}-${layers}`, 'w8-per-channel']);
  }
  if (layers > 2 && formats.some(({ roles }) => roles.some(({ role, format }) => role === 'mlp-output' && isFine(format)))) {
    options.push([`weights.decoder.1-${layers - 1}.mlp-output`, 'w8-per-channel']);
  }
  return options;
}

// The engine reads large unsigned numbers as negative ones, and cannot pass negative ones on. Only the ranges of flags and
// the zero points of encodings are signed.
const SIGNED = ['min', 'max', 'zeroPoint'];
function unsigned(value, name) {
  if (Array.isArray(value)) return value.map((item) => unsigned(item, name));
  if (typeof value === 'bigint' && !SIGNED.includes(name)) return BigInt.asUintN(64, value);
  if (typeof value === 'number' && value < 0 && !SIGNED.includes(name)) return value >>> 0;
  if (value === null || typeof value !== 'object') return value;
  return Object.fromEntries(Object.entries(value).map(([name, field]) => [name, unsigned(field, name)]));
}

// Options of the caller come last, so they override these.
const asked = (request) => ({ ...unsigned(request), options: [...wanted(request), ...request.options] });

export const api = {
  describe: () => ({
    name: 'policy-js',
    version: '0.1.0',
    summary: 'the head on the CPU, 8 bits at both ends of the decoder and in the MLPs between',
    options: solver.describe().options,
  }),
  makePlan: (request) => {
    const options = asked(request);
    log('info', options.options.map((option) => option.join('=')).join(' '));
    return solver.makePlan(options);
  },
  revise: (request, previous, history) =>
    solver.revise(asked(request), unsigned(previous), unsigned(history)),
};
