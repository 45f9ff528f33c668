// What a reader wants to know first: does it fit, how fast is it, what should change.

function drawSummary() {
  const home = section('summary');
  const rejected = SUMMARY.cpu_nodes || [];
  const weights = SUMMARY.sram_prefetch_bytes || SUMMARY.weights_bytes || 0;
  const need = reserved() + (SUMMARY.state_bytes || 0) + weights;
  home.append(
    el('p', { class: 'verdict' }, ...verdict(need)),
    el(
      'p',
      { class: 'change' },
      el('strong', { text: 'What to change' }),
      el('span', { text: sentence(SUMMARY.hint || 'Nothing to mend.') }),
    ),
    el('dl', { class: 'tiles' }, ...tiles(rejected, weights, need)),
  );
  if (CALLS.length && TOTAL) home.append(el('div', { class: 'pair' }, whereTimeGoes(), whatCostsMost()));
  home.append(estimateNote());
  const missing = DATA.missing || [];
  if (missing.length)
    home.append(
      el('h3', { class: 'missing', text: 'Not in this report' }),
      el(
        'ul',
        { class: 'bullets' },
        missing.map((text) => el('li', { text })),
      ),
    );
}

// Begins with a capital, unless the first word is the name of a node.
function sentence(text) {
  return /^[a-z-]+ /.test(text) ? text[0].toUpperCase() + text.slice(1) : text;
}

function verdict(need) {
  const micro = SUMMARY.time_us_estimated ?? (ROOF.frequency_hz ? toMs(TOTAL) * 1000 : 0);
  const spare = (SUMMARY.sram_bytes || 0) - need;
  const unknown = SUMMARY.fits === null;
  const room = unknown
    ? `(it needs ${bytes(need)})`
    : SUMMARY.fits
      ? `with ${bytes(Math.max(0, spare))} to spare`
      : `by ${bytes(Math.abs(spare))}`;
  const fit = el('span', {
    class: unknown ? '' : SUMMARY.fits ? 'good' : 'bad',
    text: unknown
      ? 'The memory of this chip is not known here'
      : SUMMARY.fits
        ? 'Fits the SRAM'
        : 'Does not fit the SRAM',
  });
  if (!TOTAL) return [fit, ` ${room}.`];
  return [
    fit,
    ` ${room}, and takes about `,
    el('strong', { text: milliseconds(micro / 1000) }),
    ' an inference',
    el('span', { class: 'quiet', text: ' (estimated).' }),
  ];
}

function tiles(rejected, weights, need) {
  const macs = (SUMMARY.macs_npu || 0) + (SUMMARY.macs_cpu || 0);
  const share = macs ? SUMMARY.macs_npu / macs : 0;
  const hidden = (SUMMARY.unknown || []).includes('macs_npu');
  const micro = SUMMARY.time_us_estimated ?? 0;
  const tile = (name, value, ...more) =>
    el(
      'div',
      { class: 'tile' },
      el('dt', { text: name }),
      el('dd', {}, el('span', { class: 'value', text: value }), ...more),
    );
  const small = (text) => el('span', { class: 'sub', text });
  const clock = ROOF.frequency_hz ? ` at ${integer(ROOF.frequency_hz / 1e6)} MHz` : '';
  return [
    tile(
      'Time',
      TOTAL ? milliseconds(micro / 1000) : 'unknown',
      small(
        TOTAL
          ? `${integer(TOTAL)} cycles${clock}, ${decimals(1e6 / Math.max(micro, 1e-9), 1e6 / micro >= 100 ? 0 : 1)} inferences a second`
          : 'this converter tells nothing',
      ),
    ),
    tile('SRAM', bytes(need), small(`of ${bytes(SUMMARY.sram_bytes || 0)}`), ...sramBar(weights)),
    tile(
      'On the NPU',
      hidden ? 'unknown' : macs ? `${percent(share)}` : '–',
      small(
        hidden
          ? 'its delegates do not tell what they compute'
          : macs
            ? `of ${integer(macs)} multiply-accumulates`
            : 'no multiply-accumulates',
      ),
      small(
        `${hidden ? 'something' : count(SUMMARY.npu_nodes || 0, 'operator')} in ${count(SUMMARY.partitions || 0, 'partition')}, ${integer(rejected.length)} left on the CPU`,
      ),
    ),
    tile(
      'Flash',
      bytes(SUMMARY.program_bytes || 0),
      small(`${bytes(SUMMARY.weights_bytes || 0)} of it weights`),
    ),
  ];
}

// Memory for inputs, outputs and activations together; older reports do not have it.
function reserved() {
  return SUMMARY.reserve_bytes ?? (SUMMARY.scratch_bytes || 0) + (SUMMARY.planned_bytes || 0);
}

function sramBar(weights) {
  const state = SUMMARY.state_bytes || 0;
  const whole = Math.max(SUMMARY.sram_bytes || 1, reserved() + state + weights);
  const scratch = Math.min(SUMMARY.scratch_bytes || 0, reserved());
  const parts = [
    ['part-0', SUMMARY.sram_prefetch_bytes ? 'prefetched weights' : 'weights', weights],
    ['part-1', 'scratch', scratch],
    ['part-2', 'inputs, outputs and other tensors', reserved() - scratch],
    ['part-3', 'state', state],
  ].filter(([, , size]) => size);
  const text = parts.map(([, name, size]) => `${name} ${bytes(size)}`).join(', ');
  return [
    el(
      'span',
      { class: 'stack', role: 'img', 'aria-label': text },
      parts.map(([name, , size]) => sized(el('span', { class: name }), 'width', `${(100 * size) / whole}%`)),
    ),
    el(
      'ul',
      { class: 'legend small' },
      parts.map(([name, title, size]) =>
        el(
          'li',
          {},
          el('span', { class: `swatch ${name}`, 'aria-hidden': 'true' }),
          `${title} ${bytes(size)}`,
        ),
      ),
    ),
  ];
}

// Copies from flash run beside the rest: what starting them takes is overhead, what they delay is in the waits.
function timeByBound() {
  const sums = new Map();
  for (const call of CALLS) {
    const bound = call.kind === 'copy' ? 'overhead' : call.bound;
    sums.set(bound, (sums.get(bound) || 0) + advance(call));
  }
  return Object.keys(BOUNDS)
    .filter((bound) => sums.get(bound))
    .map((bound) => [bound, sums.get(bound)]);
}

function whereTimeGoes() {
  const parts = timeByBound();
  const whole = parts.reduce((sum, [, cycles]) => sum + cycles, 0);
  const label = parts.map(([bound, cycles]) => `${boundName(bound)} ${percent(cycles / whole)}`).join(', ');
  return el(
    'div',
    {},
    el('h3', { text: 'What limits it' }),
    el(
      'div',
      { class: 'stack tall', role: 'img', 'aria-label': label },
      parts.map(([bound, cycles]) =>
        sized(el('span', { class: boundClass(bound) }), 'width', `${(100 * cycles) / whole}%`),
      ),
    ),
    el(
      'ul',
      { class: 'rows' },
      parts.map(([bound, cycles]) =>
        el(
          'li',
          {},
          el('span', { class: `swatch ${boundClass(bound)}`, 'aria-hidden': 'true' }),
          el('span', { class: 'grow', text: boundName(bound)[0].toUpperCase() + boundName(bound).slice(1) }),
          el('span', { class: 'num', text: time(cycles) }),
          el('span', { class: 'num quiet', text: percent(cycles / whole) }),
        ),
      ),
    ),
  );
}

function whatCostsMost() {
  const top = NODES.filter((node) => node.cycles)
    .sort((a, b) => b.cycles - a.cycles)
    .slice(0, 5);
  return el(
    'div',
    {},
    el('h3', { text: 'What costs most' }),
    el(
      'ul',
      { class: 'rows' },
      top.map((node) =>
        el(
          'li',
          {},
          el(
            'button',
            { type: 'button', class: 'row', onclick: () => select('node', node.id, 'summary') },
            el('span', { class: `swatch ${placeClass(node)}`, 'aria-hidden': 'true' }),
            el(
              'span',
              { class: 'grow' },
              el('span', { text: shortOp(node.op) }),
              ' ',
              el('code', { text: node.name }),
            ),
            el('span', { class: 'num', text: time(node.cycles) }),
            el('span', { class: 'num quiet', text: percent(node.cycles / TOTAL) }),
          ),
        ),
      ),
    ),
  );
}

function estimateNote() {
  const model = DATA.cost_model || {};
  const rows = model.validation || [];
  const signed = (value) => `${value > 0 ? '+' : value < 0 ? '−' : ''}${decimals(Math.abs(100 * value), 1)}%`;
  const columns = [
    { title: 'chip', value: (row) => row.target || '' },
    { title: 'on', value: (row) => (row.on || 'npu').toUpperCase() },
    { title: 'network', value: (row) => row.model },
    {
      title: 'published cycles',
      number: true,
      value: (row) => row.published_cycles,
      cell: (row) => integer(row.published_cycles),
    },
    {
      title: 'estimated',
      number: true,
      value: (row) => row.estimated_cycles,
      cell: (row) => integer(row.estimated_cycles),
    },
    { title: 'error', number: true, value: (row) => row.error, cell: (row) => signed(row.error) },
    {
      title: 'used for',
      value: (row) => (row.fitted ? 'fitting' : row.set_aside ? 'shown only' : 'checking'),
    },
    { title: 'source', value: (row) => row.source || '', minor: true },
  ];
  const parameters = Object.entries(model.parameters || {}).map(([key, found]) => ({
    name: key.replaceAll('_', ' '),
    ...(found && typeof found === 'object' ? found : { value: found }),
  }));
  const known = [
    { title: 'parameter', value: (row) => row.name },
    {
      title: 'value',
      number: true,
      value: (row) => row.value,
      cell: (row) => (typeof row.value === 'number' ? row.value.toLocaleString('en-US') : String(row.value)),
    },
    { title: 'unit', value: (row) => row.unit || '', minor: true },
    { title: 'where it comes from', value: (row) => row.source || '' },
  ];
  return folded(
    'How good are these estimates?',
    () => [
      el('p', { text: model.label || 'Cycles are estimated by a model of the NPU, not measured.' }),
      ...(rows.length ? [dataTable({ name: 'networks', columns, rows, key: (row) => row.model })] : []),
      ...(parameters.length
        ? [dataTable({ name: 'parameters', columns: known, rows: parameters, key: (row) => row.name })]
        : []),
    ],
    'estimate',
  );
}
