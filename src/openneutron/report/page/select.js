// One selection for all views: a node or a call, and what belongs to it everywhere. The address follows it.

const SECTIONS = ['summary', 'graph', 'timeline', 'memory', 'roofline', 'errors', 'what-if', 'operators'];
const selection = { kind: null, id: null, nodes: new Set(), calls: new Set(), buffers: new Set() };
const followers = [];

// Views register here to be told of every change.
function follow(update) {
  followers.push(update);
}

function isSelected(kind, id) {
  return selection.kind === kind && selection.id === id;
}

function select(kind, id, origin) {
  const known = kind === 'node' ? NODE.has(id) : kind === 'call' ? CALL.has(id) : false;
  selection.kind = known ? kind : null;
  selection.id = known ? id : null;
  selection.nodes = new Set(!known ? [] : kind === 'node' ? [id] : CALL.get(id).nodes);
  selection.calls = new Set(!known ? [] : kind === 'call' ? [id] : NODE.get(id).calls);
  selection.buffers = new Set(
    [...selection.calls].flatMap((call) =>
      CALL.has(call) ? writtenBy(CALL.get(call)).map((buffer) => buffer.key) : [],
    ),
  );
  const address = known
    ? `#${kind}=${encodeURIComponent(kind === 'node' ? addressOf(id) : id)}`
    : location.pathname + location.search;
  if (origin !== 'address') history.replaceState(null, '', address);
  for (const update of followers) update(origin);
}

// The name a reader knows it by, unless two nodes share it.
function addressOf(id) {
  const { name } = NODE.get(id);
  return BY_NAME.get(name).id === id ? name : id;
}

function toggle(kind, id, origin) {
  if (isSelected(kind, id)) select(null, null, origin);
  else select(kind, id, origin);
}

// A buffer is found through the call that fills it.
function writtenBy(call) {
  const written = new Set(call.writes || []);
  return (BUFFERS_OF_CALL.get(call.index) || []).filter(
    (buffer) => written.has(buffer.name) || (buffer.tensors || []).some((tensor) => written.has(tensor)),
  );
}

function writerOf(buffer) {
  const calls = CALLS_OF_BUFFER.get(buffer.key) || [];
  return (
    calls.find((call) => writtenBy(call).includes(buffer)) ||
    (NPU_CALLS.get(buffer.partition) || [])[buffer.first]
  );
}

// Selecting what a call computes: its node if there is one, so that the graph and the table follow.
function selectCall(call, origin) {
  if (call.nodes.length && NODE.has(call.nodes[0])) toggle('node', call.nodes[0], origin);
  else toggle('call', call.index, origin);
}

// "#timeline", "#node=NAME", "#call=7", "#memory&node=NAME"
function followAddress() {
  let place = null;
  let chosen = null;
  for (const part of location.hash.slice(1).split('&')) {
    const [key, ...rest] = part.split('=');
    let value = rest.join('=');
    try {
      value = decodeURIComponent(value);
    } catch {
      // A stray % in a hand-written address: take it as it stands.
    }
    if (key === 'node') {
      const node = findNode(value);
      if (node) chosen = ['node', node.id];
    } else if (key === 'call') chosen = ['call', Number(value)];
    else if (SECTIONS.includes(part)) place = part;
  }
  if (chosen) select(chosen[0], chosen[1], 'address');
  if (!place && chosen) place = 'graph';
  if (place) section(place).scrollIntoView({ block: 'start' });
}

// -- the tip that follows the pointer or the focus ----------------------------------------------------------

const tip = el('div', { class: 'tip', role: 'tooltip', id: 'tip', hidden: true });

function showTip(rows, x, y) {
  tip.replaceChildren(...rows);
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.min(Math.max(8, x + 14), window.innerWidth - width - 8);
  const below = y + 18 + height < window.innerHeight;
  sized(tip, 'left', `${Math.max(8, left)}px`);
  sized(tip, 'top', `${below ? y + 18 : Math.max(8, y - height - 12)}px`);
}

function hideTip() {
  tip.hidden = true;
}

// What hovering an element shows and what clicking it does. A few listeners on the page serve thousands of them.
const tips = new WeakMap();
const actions = new WeakMap();

function alive(element, rows, act) {
  if (rows) tips.set(element, rows);
  if (act) actions.set(element, act);
  return element;
}

function nearest(map, element) {
  let found = element instanceof Element ? element : null;
  while (found && !map.has(found)) found = found.parentElement;
  return found;
}

function listen() {
  let under = null;
  document.addEventListener('pointermove', (event) => {
    const found = event.pointerType === 'touch' || event.buttons ? null : nearest(tips, event.target);
    if (found) showTip(tips.get(found)(), event.clientX, event.clientY);
    else if (under) hideTip();
    under = found;
  });
  document.documentElement.addEventListener('pointerleave', hideTip);
  document.addEventListener('focusin', (event) => {
    if (!tips.has(event.target) || !event.target.matches(':focus-visible')) return;
    const box = event.target.getBoundingClientRect();
    showTip(
      tips.get(event.target)(),
      box.left + Math.min(box.width / 2, 160),
      Math.min(box.bottom, window.innerHeight - 40),
    );
  });
  document.addEventListener('focusout', hideTip);
  document.addEventListener('click', (event) => {
    const found = nearest(actions, event.target);
    if (found && !event.target.closest('button, a, input, summary')) actions.get(found)();
  });
  document.addEventListener('keydown', (event) => {
    if ((event.key !== 'Enter' && event.key !== ' ') || !actions.has(event.target)) return;
    event.preventDefault();
    actions.get(event.target)();
  });
}

const fact = (name, value) =>
  value === '' || value === null || value === undefined
    ? null
    : el('div', { class: 'fact' }, el('span', { class: 'name', text: name }), el('span', { text: value }));

function nodeFacts(node) {
  const bound = node.calls.length && CALL.has(node.calls[0]) ? dominantBound(node) : '';
  return [
    fact('runs on', placeName(node)),
    fact('result', shape(node)),
    fact('MACs', node.macs ? integer(node.macs) : ''),
    fact('time', node.cycles ? `${time(node.cycles)}, ${integer(node.cycles)} cycles` : ''),
    fact('limited by', bound && boundName(bound)),
    node.reason &&
      el('p', { class: 'why' }, el('code', { text: node.reason.code }), ` ${node.reason.reason}`),
    node.reason?.hint && el('p', { class: 'hint', text: node.reason.hint }),
  ].filter(Boolean);
}

function dominantBound(node) {
  const sums = new Map();
  for (const index of node.calls) {
    const call = CALL.get(index);
    if (call) sums.set(call.bound, (sums.get(call.bound) || 0) + call.cycles);
  }
  return [...sums].sort((a, b) => b[1] - a[1])[0]?.[0] || '';
}

function nodeTip(node) {
  return [
    el('strong', { text: shortOp(node.op) }),
    el('code', { class: 'sub', text: node.name }),
    ...nodeFacts(node),
  ];
}

function callFacts(call) {
  return [
    fact('kernel', call.kernel ? call.kernel.toLowerCase() : ''),
    fact('partition', call.partition === null || (SUMMARY.partitions || 1) < 2 ? '' : String(call.partition)),
    fact('takes', `${time(call.cycles)}, ${integer(call.cycles)} cycles`),
    fact('with the portable kernel', call.saved ? `${integer(call.cycles + call.saved)} cycles` : ''),
    fact('starts at', time(call.start)),
    fact('limited by', boundName(call.bound)),
    fact('MACs', call.macs ? integer(call.macs) : ''),
    fact('moves', call.bytes ? bytes(call.bytes) : ''),
  ].filter(Boolean);
}

function callTip(call) {
  const names = call.nodes.length ? call.nodes.map((id) => NODE.get(id)?.name || id).join(', ') : call.name;
  return [
    el('strong', { text: callTitle(call) }),
    el('code', { class: 'sub', text: names }),
    ...callFacts(call),
  ];
}

// Arrow keys walk along `items()`; only one of them is in the tab order.
function roving(container, items, step) {
  container.addEventListener('keydown', (event) => {
    const all = items();
    const at = all.indexOf(document.activeElement);
    if (at < 0) return;
    const next = step(event.key, at, all);
    if (next === undefined || next === null || !all[next]) return;
    event.preventDefault();
    all[at].setAttribute('tabindex', '-1');
    all[next].setAttribute('tabindex', '0');
    all[next].focus();
  });
}

// The same for the marks of a chart, which stand in a row.
function rovingMarks(chart) {
  roving(
    chart,
    () => [...chart.querySelectorAll('[data-key]')],
    (key, at, all) =>
      ({
        ArrowRight: Math.min(all.length - 1, at + 1),
        ArrowLeft: Math.max(0, at - 1),
        Home: 0,
        End: all.length - 1,
      })[key],
  );
}
