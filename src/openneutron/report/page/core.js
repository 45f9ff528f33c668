// The report's data with its indexes, how numbers are written, and how elements are made.
// Nothing here or elsewhere sets HTML: names from models reach the page as text only.

const DATA = JSON.parse(document.getElementById('data').textContent);
const SUMMARY = DATA.summary || {};
const NODES = (DATA.nodes || []).map((node) => ({
  ...node,
  id: String(node.id),
  inputs: (node.inputs || []).map(String),
  calls: node.calls || [],
}));
const CALLS = (DATA.timeline || []).map((call) => ({ ...call, nodes: (call.nodes || []).map(String) }));
const MEMORY = DATA.memory || [];
const ROOF = DATA.roofline || {};

const NODE = new Map(NODES.map((node) => [node.id, node]));
const CALL = new Map(CALLS.map((call) => [call.index, call]));
const BY_NAME = new Map([...NODES].reverse().map((node) => [node.name, node])); // the first of a name wins
const findNode = (name) => BY_NAME.get(String(name)) || NODE.get(String(name)) || null;
const USERS = new Map(NODES.map((node) => [node.id, []]));
for (const node of NODES)
  for (const input of node.inputs) if (USERS.has(input)) USERS.get(input).push(node.id);

// Other lists name nodes by number or by name; here they all have the node's id, or null.
const withNode = (row) => ({
  ...row,
  node: (typeof row.node === 'number' ? NODE.get(String(row.node)) : findNode(row.node))?.id ?? null,
});
const ERRORS = (DATA.errors || []).map(withNode);
const WHAT_IF = (DATA.what_if || []).map(withNode);

// The buffers of all partitions in one list; `first` and `last` become positions among the partition's calls.
const NPU_KINDS = new Set(['kernel', 'copy', 'wait']);
const NPU_CALLS = new Map(
  MEMORY.map((area) => [
    area.partition,
    CALLS.filter((call) => call.partition === area.partition && NPU_KINDS.has(call.kind)),
  ]),
);
const BUFFERS = MEMORY.flatMap((area) => {
  const position = new Map(NPU_CALLS.get(area.partition).map((call, i) => [call.index, i]));
  return (area.buffers || []).map((buffer, i) => ({
    ...buffer,
    partition: area.partition,
    key: `${area.partition}:${i}`,
    first: position.get(buffer.first) ?? 0,
    last: position.get(buffer.last) ?? 0,
  }));
});
const BUFFERS_OF_CALL = new Map(CALLS.map((call) => [call.index, []]));
const CALLS_OF_BUFFER = new Map(BUFFERS.map((buffer) => [buffer.key, []]));
{
  const byTensor = new Map();
  for (const buffer of BUFFERS) {
    for (const tensor of [buffer.name, ...(buffer.tensors || [])]) {
      const name = `${buffer.partition} ${tensor}`;
      byTensor.set(name, (byTensor.get(name) || new Set()).add(buffer));
    }
  }
  for (const call of CALLS) {
    if (!NPU_KINDS.has(call.kind)) continue;
    const touched = new Set();
    for (const tensor of [...(call.writes || []), ...(call.reads || [])]) {
      for (const buffer of byTensor.get(`${call.partition} ${tensor}`) || []) touched.add(buffer);
    }
    for (const buffer of touched) {
      BUFFERS_OF_CALL.get(call.index).push(buffer);
      CALLS_OF_BUFFER.get(buffer.key).push(call);
    }
  }
}

// -- numbers ------------------------------------------------------------------------------------------------

const INTEGER = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 });
const decimals = (value, digits) =>
  value.toLocaleString('en-US', { minimumFractionDigits: digits, maximumFractionDigits: digits });
const integer = (value) => INTEGER.format(value);
const bytes = (value) => (value < 1024 ? `${integer(value)} B` : `${decimals(value / 1024, 1)} KiB`);
const exactBytes = (value) => (value < 1024 ? bytes(value) : `${bytes(value)} (${integer(value)} B)`);
const milliseconds = (value) =>
  `${decimals(value, value >= 100 ? 0 : value >= 10 ? 1 : value >= 1 ? 2 : 3)} ms`;
const toMs = (cycles) => (cycles / ROOF.frequency_hz) * 1000;
const time = (cycles) => (ROOF.frequency_hz ? milliseconds(toMs(cycles)) : `${integer(cycles)} cycles`);
const percent = (part) => {
  if (part > 0 && part < 0.001) return '< 0.1%';
  return `${decimals(100 * part, part >= 0.9995 || part === 0 ? 0 : 1)}%`;
};
const count = (number, what, many = `${what}s`) => `${integer(number)} ${number === 1 ? what : many}`;
const shape = (node) => (node.shape?.length ? `${node.shape.join(' × ')} ${node.dtype || ''}`.trim() : '');
const TOTAL =
  SUMMARY.cycles_estimated || CALLS.reduce((most, call) => Math.max(most, call.start + call.cycles), 0);

// "aten.convolution.default" and "aten::convolution.out" are "convolution" to a reader; quantize steps lose their granularity too.
function shortOp(op) {
  const parts = String(op || '')
    .replace('::', '.')
    .split('.');
  const name = parts.length > 1 ? parts[1] : parts[0];
  const found = /^(de)?quantize_per_/.exec(name);
  if (found) return found[1] ? 'dequantize' : 'quantize';
  return name.replace(/^_+/, '').toLowerCase() || 'operator';
}

const BOUNDS = {
  mac: 'multiply-accumulate units',
  sram: 'SRAM rate',
  flash: 'flash rate',
  overhead: 'call overhead',
  cpu: 'CPU',
};
const BOUND_SHORT = { mac: 'MAC', sram: 'SRAM', flash: 'flash', overhead: 'overhead', cpu: 'CPU' };
const boundName = (bound) => BOUNDS[bound] || bound || '';
const boundClass = (bound) => (bound in BOUNDS ? `bound-${bound}` : 'bound-overhead');
const PALETTE = 8;
function placeClass(node) {
  if (node.where === 'npu') return `place-${(node.partition || 0) % PALETTE}`;
  return node.where === 'cpu' ? 'place-cpu' : 'place-io';
}
function placeName(node) {
  if (node.where === 'npu') return (SUMMARY.partitions || 1) > 1 ? `NPU, partition ${node.partition}` : 'NPU';
  return node.where === 'cpu' ? 'CPU' : 'program border';
}
function callTitle(call) {
  const names = call.nodes.map((id) => (NODE.has(id) ? shortOp(NODE.get(id).op) : id));
  if (call.border) return `transpose${names.length ? ` for ${names[0]}` : ' at the border'}`;
  if (call.kind === 'copy') return `copy from flash${names.length ? ` for ${names[0]}` : ''}`;
  if (call.kind === 'wait') return `wait for a copy${names.length ? `, then ${names[0]}` : ''}`;
  if (names.length && call.kind !== 'transpose') return names.join(' + ');
  return call.kind === 'kernel'
    ? (call.kernel || call.name || 'kernel').toLowerCase().replaceAll('_', ' ')
    : call.kind;
}

// -- elements -----------------------------------------------------------------------------------------------

// By how much a step moves the clock on; copies run beside the others.
const advance = (call) => call.advance ?? (call.kind === 'copy' ? 0 : call.cycles);

const SVG = 'http://www.w3.org/2000/svg';
function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === 'text') element.textContent = value;
    else if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? '' : value);
  }
  element.append(
    ...children.flat().filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}
const el = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);
const svg = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);
const section = (id) => document.getElementById(id);

// A length that only the data knows. The page's policy forbids style attributes, not this.
function sized(element, property, value) {
  element.style.setProperty(property, value);
  return element;
}

// What a tensor is called in a small space: without the parts that all names share.
function shortName(name) {
  return name
    .replace(/^(aten|quantized_decomposed)_/, '')
    .replace(/_(default|per_tensor|per_channel)(?=_|$)/g, '');
}

// A chart's frame, with what explains it on the left and its buttons on the right above it.
function figure(frame, explanation, buttons) {
  return el(
    'div',
    {},
    el('div', { class: 'above' }, explanation, el('div', { class: 'tools' }, buttons)),
    el('div', { class: 'figure' }, frame),
  );
}

// What is folded away is made when it is first unfolded.
function folded(title, make, name) {
  const details = el('details', { class: name }, el('summary', { text: title }));
  details.addEventListener('toggle', () => details.append(...make()), { once: true });
  return details;
}

function toolButton(text, label, action) {
  return el('button', {
    type: 'button',
    class: 'tool',
    title: label,
    'aria-label': label,
    text,
    onclick: action,
  });
}

function shorten(text, most) {
  return text.length <= most ? text : most < 2 ? '' : `${text.slice(0, most - 1)}…`;
}

function legend(entries) {
  return el(
    'ul',
    { class: 'legend' },
    entries.map(([name, text]) =>
      el('li', {}, el('span', { class: `swatch ${name}`, 'aria-hidden': 'true' }), text),
    ),
  );
}

// "Nice" positions between two numbers: 1, 2 or 5 times a power of ten apart.
function ticks(from, to, about) {
  const span = Math.max(to - from, 1e-12);
  const rough = span / Math.max(1, about);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  const result = [];
  for (let i = Math.ceil(from / step - 1e-9); i * step <= to + step * 1e-9; i += 1) result.push(i * step + 0);
  return { values: result, step };
}
